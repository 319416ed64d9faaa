"""`autockpt frontier`, and `explain` of what it writes."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from autockpt import Frontier, frontier
from autockpt.solvers.units import format_bytes
from tests.cli.shell import Run, imports_torch
from tests.handmade import chain_profile


@functools.lru_cache
def chain() -> Frontier:
    return frontier(chain_profile(), points=8)


def test_the_command_prints_a_table(run: Run, profile_file: Path) -> None:
    result = run("frontier", profile_file, "--points", 8, "-v")
    assert (result.status, result.err) == (0, "")
    assert result.out == chain().explain()
    assert run("frontier", "-", "--points", 8, "-v", stdin=profile_file.read_bytes()) == result


def test_the_first_screen_says_what_each_budget_costs(run: Run, profile_file: Path) -> None:
    first, ran, _, header, _, plain, *rows = run("frontier", profile_file, "--points", 4).out.splitlines()
    assert first.startswith("Chain: 119.00 MiB plain, 37.00 MiB at the least")
    assert ran.startswith("predicted from a step that ran")
    assert header.split() == ["peak", "less", "slower", "recomputed"]
    assert plain == "119.00 MiB     -       -  nothing: the plain step"
    assert any(row.startswith(" 37.00 MiB   69%") for row in rows)
    assert "Next:" in rows[3] and any("--budget 59.5MiB -o plan.json" in row for row in rows)


def test_bytes_are_in_the_unit_of_the_budget(run: Run, profile_file: Path) -> None:
    """Asked in MB it answered in MiB."""
    out = run("frontier", profile_file, "--budget", "80MB").out
    assert " MB" in out and "MiB" not in out and "--budget 80MB" in out


def test_the_budget_that_it_proposes_is_one_that_a_plan_keeps(run: Run) -> None:
    """Half of the plain peak of a UNet, 14.5 GiB, is below what any plan reaches."""
    said = run("frontier", "sd-unet", "--points", 2).out
    assert "--budget 16.1GiB" in said
    assert "Next: autockpt frontier sd-unet" in run("explain", "sd-unet").out


def test_json_is_the_frontier_and_nothing_else(run: Run, profile_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "frontier.json"
    result = run("frontier", profile_file, "--budget", "50MiB", "--budget", "40MiB", "--json", "-o", output)
    assert result.status == 0
    assert result.err == f"wrote {output}\n"
    assert result.out == output.read_text()
    assert len(Frontier.load(output).plans) == 4


def test_a_budget_below_the_minimum_is_left_out_and_named(run: Run, profile_file: Path) -> None:
    result = run("frontier", profile_file, "--budget", "50MiB", "--budget", "1MiB")
    minimum = format_bytes(chain().minimum_bytes)
    assert (result.status, result.err) == (0, f"1MiB is left out: 'auto' found no plan below {minimum}\n")


def test_a_frontier_can_be_explained(run: Run, profile_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    chain().save(path)
    assert run("explain", path, "-v").out == chain().explain()
    document = json.loads(run("explain", path, "--json").out)
    assert document["kind"] == "frontier"
    assert document["predicted_minimum_bytes"] == document["rows"][-1]["peak_bytes"] == chain().minimum_bytes
    assert run("explain", path, "--budget", "80MiB", "-v").out == chain().within("80MiB").explain()
    below = run("explain", path, "--budget", chain().minimum_bytes - 1, "--json")
    assert below.status == 1
    assert json.loads(below.out)["minimum_bytes"] == chain().minimum_bytes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--points", "1"], "--points"),
        (["--solver", "best"], "is not one of 'all', "),
        (["--budget", "8 G B"], "8 G B"),
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "nan"], "nan is no number of seconds"),
        (["-o", "missing/frontier.json"], "missing/frontier.json"),
    ],
)
def test_misused(run: Run, profile_file: Path, arguments: list[str], words: str) -> None:
    result = run("frontier", profile_file, *arguments)
    assert (result.status, result.out) == (2, "")
    assert words in result.err.splitlines()[-1]


@pytest.mark.parametrize("contents", [b"", b'{"schema": "autockpt.plan/1"}'], ids=["empty", "a plan"])
def test_a_file_that_is_no_profile(run: Run, tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(contents)
    result = run("frontier", path)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"Error: {path}")
    assert result.err.count("\n") == 1


def test_it_imports_no_torch(profile_file: Path) -> None:
    assert not imports_torch(["frontier", str(profile_file), "--points", "3"])
