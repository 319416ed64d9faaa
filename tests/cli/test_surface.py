"""The verbs and their options, to the letter; their help, its examples, and what shells complete."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from autockpt._cli import main
from autockpt._devices import DEVICES
from autockpt.solvers import SOLVERS
from tests.cli.shell import Run

VERBS = {
    "demo": ["--json"],
    "explain": ["FILE", "--budget", "--max-overhead", "--solver", "--time-limit", "--profile", "--json"],
    "frontier": ["PROFILE", "--solver", "--points", "--budget", "--time-limit", "-o, --output", "--json"],
    "profile": ["TARGET", "--mode", "--device", "--optimizer", "-o, --output", "--json"],
    "solve": [
        *("PROFILE", "--budget", "--max-overhead", "--solver", "--keep", "--recompute", "--time-limit"),
        *("-o, --output", "--json"),
    ],
    "verify": [
        *("TARGET", "--plan", "--budget", "--max-overhead", "--steps", "--solver", "--optimizer", "--keep"),
        *("--recompute", "--json"),
    ],
}


def verb(name: str) -> click.Command:
    assert isinstance(main, click.Group)
    return main.commands[name]


def test_the_verbs_and_options_are_these() -> None:
    assert isinstance(main, click.Group)
    found = {
        name: [
            ", ".join(each.opts) if isinstance(each, click.Option) else each.human_readable_name
            for each in command.params
        ]
        for name, command in main.commands.items()
    }
    assert found == VERBS
    assert [option for each in main.params for option in each.opts] == ["--version"]


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


@pytest.mark.parametrize("name", VERBS)
def test_the_help_fits_sixty_columns(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = run(name, "--help")
    assert (result.status, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 60
    assert all(each.opts[-1] in result.out for each in verb(name).params if isinstance(each, click.Option))


def complete(*words: str) -> list[tuple[str, str]]:
    found = BashComplete(main, {}, "autockpt", "_AUTOCKPT_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [(each.type, each.value) for each in found]


def test_shells_complete() -> None:
    assert complete("") == [("plain", name) for name in VERBS]
    assert complete("solve", "p.json", "--solver", "") == [("plain", name) for name in sorted(SOLVERS)]
    assert complete("verify", "m:f", "--solver", "s") == [("plain", "speed"), ("plain", "sqrt")]
    assert complete("profile", "m:f", "--mode", "f") == [("plain", "forward"), ("plain", "fake")]
    assert complete("profile", "m:f", "--device", "") == [("plain", name) for name in sorted(DEVICES)]
    assert complete("profile", "mo") == [("file", "mo")]
    assert complete("verify", "m:f", "--plan", "pl") == [("file", "pl")]
    assert complete("solve", "p.json", "--time") == [("plain", "--time-limit")]


def test_help_says_how_to_have_it(run: Run) -> None:
    assert 'eval "$(_AUTOCKPT_COMPLETE=bash_source autockpt)"' in run("--help").out
