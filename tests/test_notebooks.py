"""The notebooks run, and show what they showed when they were committed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .notebooks import CHECKS, NOTEBOOKS, execute, read

MOST_CELLS = 15
MOST_BYTES = 400_000
FOREIGN = re.compile(r"/home/|/root/|/tmp/|/usr/|0x[0-9a-f]{6,}")
"""What belongs to the machine on which a notebook was run."""


def shown(notebook: Any) -> list[list[tuple[str, ...]]]:
    """By cell, the kinds of what it showed: streams by name, other outputs by their types of data."""
    return [
        [
            (output["output_type"], output["name"])
            if output["output_type"] == "stream"
            else tuple(sorted(output["data"]))
            for output in cell.get("outputs", ())
        ]
        for cell in notebook.cells
    ]


def test_there_are_some() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["01_profile", "02_choose_a_budget", "03_apply_and_verify"]


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_what_is_committed(path: Path, tmp_path: Path) -> None:
    committed, notebook = read(path), read(path)
    execute(notebook, tmp_path, CHECKS[path.stem])  # an error in a cell is raised, and a check that fails
    assert shown(notebook) == shown(committed)
    assert sum(map(len, shown(committed))) >= 4
    streams = [output for cell in committed.cells for output in cell.get("outputs", ()) if "name" in output]
    said = [line for each in streams if each["name"] == "stderr" for line in each["text"].splitlines()]
    assert all(line.startswith("autockpt: plan ready: ") for line in said), said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_short_ends_in_what_was_learnt_and_tells_nothing_of_a_machine(path: Path) -> None:
    notebook = read(path)
    assert len(notebook.cells) <= MOST_CELLS
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.cells[-1].cell_type == "markdown" and notebook.cells[-1].source.startswith("## What was learnt\n")
    assert not any(re.search(r"^assert ", cell.source, re.MULTILINE) for cell in code)
    assert CHECKS[path.stem].count("assert ") >= 6
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))  # run once, from the top
    assert path.stat().st_size <= MOST_BYTES
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text())
    assert not FOREIGN.findall(text)
