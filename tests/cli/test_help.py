"""The help of each verb, its examples, and what shells complete."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from autockpt.solvers import SOLVERS
from tests.cli.shell import VERBS, Run, verb
from tests.doors import ROOFLINES, cli_main


@pytest.mark.parametrize("name", VERBS)
def test_the_examples_of_the_help_parse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("profile.json", "plan.json", "train.py"):
        Path(file).touch()
    lines = [line.strip() for line in (verb(name).epilog or "").splitlines()]
    examples = [shlex.split(line) for line in lines if line.startswith("autockpt ")]
    assert examples
    for example in examples:
        assert example[:2] == ["autockpt", name]
        verb(name).make_context(name, example[2:])


@pytest.mark.parametrize("columns", [40, 60])
@pytest.mark.parametrize("name", VERBS)
def test_the_help_fits_the_screen(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run(name, "--help")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert max(len(line) for line in lines if columns == 60 or not line.startswith("    autockpt ")) <= columns
    assert all(each.opts[-1] in result.out for each in verb(name).params if isinstance(each, click.Option))


def complete(*words: str) -> list[tuple[str, str]]:
    found = BashComplete(cli_main, {}, "autockpt", "_AUTOCKPT_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [(each.type, each.value) for each in found]


def test_shells_complete() -> None:
    assert complete("") == [("plain", name) for name in VERBS]
    assert complete("solve", "p.json", "--solver", "") == [("plain", name) for name in sorted(SOLVERS)]
    assert complete("verify", "m:f", "--solver", "s") == [("plain", "speed"), ("plain", "sqrt")]
    assert complete("profile", "m:f", "--mode", "f") == [("plain", "fake")]
    assert complete("profile", "m:f", "--device", "") == [("plain", name) for name in sorted(ROOFLINES)]
    assert complete("profile", "mo") == [("file", "mo")]
    assert complete("verify", "m:f", "--plan", "pl") == [("file", "pl")]
    assert complete("solve", "p.json", "--sec") == [("plain", "--seconds")]


def test_help_says_how_to_have_it(run: Run) -> None:
    assert 'eval "$(_AUTOCKPT_COMPLETE=bash_source autockpt)"' in run("--help").out
