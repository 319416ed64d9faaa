"""Every page fits its columns, whatever modules are called; progress is for terminals alone."""

from __future__ import annotations

import functools
import io
import re
import shlex
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from autockpt import Plan, Profile, Verification, frontier, solve
from tests.cli.shell import Run, verb
from tests.doors import progress, tell, verification_page
from tests.handmade import chain_profile

LONG = "backbone.model.text_encoder_with_projection.transformer_blocks"


@functools.lru_cache
def long_profile() -> Profile:
    """The chain, whose modules have long names."""
    profile = chain_profile(
        6, notes=("a note that is long enough to need more than the sixty columns there are, twice",)
    )
    calls = (
        msgspec.structs.replace(
            call, name=call.name.replace("h.", f"{LONG}.", 1), class_name=f"{call.class_name}WithRope"
        )
        for call in profile.calls
    )
    return msgspec.structs.replace(profile, model="TextEncoderForConditionalGeneration", calls=tuple(calls))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    profile, path = long_profile(), tmp_path_factory.mktemp("screens")
    profile.save(path / "profile.json")
    solve(profile, "80MiB").save(path / "plan.json")
    frontier(profile, points=4).save(path / "frontier.json")
    Plan.of([[f"{LONG}.{i}.attn", f"{LONG}.{i}.mlp"] for i in (0, 2)]).save(path / "made.json")
    return path


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        "explain profile.json",
        "explain profile.json --budget 80MiB",
        "explain profile.json --budget min",
        "explain profile.json --max-overhead 0.05 --solver chain",
        "explain plan.json",
        "explain plan.json --profile profile.json",
        "explain made.json --profile profile.json",
        "explain frontier.json",
        "explain frontier.json --budget 80MiB --profile profile.json",
        "solve profile.json --budget 6MiB",
        f"solve profile.json --budget 100MiB --keep {LONG}.0 --recompute {LONG}.2.mlp",
        "frontier profile.json --points 4",
    ],
)
@pytest.mark.parametrize("verbose", [["-v"], []], ids=["verbose", "brief"])
def test_pages_fit(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, columns: int, verbose: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(folder)
    words = arguments.split()
    result = run(*words, *verbose)
    assert result.status == (1 if "6MiB" in arguments else 0)
    lines = (result.out or result.err).splitlines()
    if not result.out:
        return
    wrapped = [line for line in lines if not line.startswith("Next: autockpt")]  # a command is never broken
    assert columns // 3 < max(map(len, wrapped)) <= columns
    assert not any(
        re.search(r"\d$", one) and re.match(r" *(?:[KMGT]i?B|m?s|µs|%)\b", other) for one, other in pairwise(lines)
    )
    if not verbose:
        assert len(lines) <= 15 or columns < 80
        assert max(map(len, wrapped)) <= 80
    assert not any(line != line.rstrip() for line in lines)


@pytest.mark.parametrize("verb", ["explain", "frontier", "solve", "explain a plan", "frontier with a file"])
def test_what_comes_next_can_be_copied(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """A path of a temporary folder was broken in the midst of a word, and the command after "Next:" failed."""
    deep = folder / "a folder" / "-".join(["of-a-long-name"] * 8)
    deep.mkdir(parents=True, exist_ok=True)
    source = deep / "profile.json"
    source.write_bytes((folder / "profile.json").read_bytes())
    more = {
        "solve": ["--budget", "100MiB", "--keep", f"{LONG}.0"],
        "explain a plan": ["--budget", "100MiB"],
        "frontier": ["--points", "2"],
        "frontier with a file": ["--points", "2", "-o", str(deep / "frontier.json")],
    }
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(deep)
    shown = run(verb.split()[0], source, *more.get(verb, []))
    assert shown.status == 0, shown.err
    (line,) = (line for line in shown.out.splitlines() if line.startswith("Next: "))
    command = shlex.split(line.removeprefix("Next: autockpt "))
    assert str(deep) in command[1]
    assert run(*command).status == 0


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_page_of_a_verification_fits(columns: int) -> None:
    figures = dict.fromkeys(Verification.__struct_fields__, 2**31)
    words = dict.fromkeys(("model", "device", "torch_version"), "some words that are rather long")
    others = dict.fromkeys(("differences", "plain_differences", "wrong_replays", "not_replayed", "not_met"), ())
    rest = {"verdict": "exact", "compared": {"loss": 3}, "notes": (), "error": None}
    found = Verification(**{**figures, **words, **others, **rest})  # type: ignore[arg-type]
    assert max(map(len, verification_page(found).text(columns).splitlines())) <= columns


def test_piped_is_a_hundred_columns(run: Run, folder: Path) -> None:
    assert run("explain", folder / "profile.json", "-v").out == long_profile().explain()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Timer:
    """A timer of no patience is over as it starts, and any other never."""

    def __init__(self, patience_seconds: float, function: Callable[..., object], arguments: list[Any]) -> None:
        self.patience_seconds, self.daemon, self.cancelled = patience_seconds, False, False
        self.over = functools.partial(function, *arguments)

    def start(self) -> None:
        assert self.daemon
        if not self.patience_seconds:
            self.over()

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[_Timer]:
    """Take the timers that are made; none of them waits."""
    made: list[_Timer] = []

    def timer(*arguments: Any) -> _Timer:
        made.append(_Timer(*arguments))
        return made[-1]

    monkeypatch.setattr(threading, "Timer", timer)
    return made


def working(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, limit_seconds: float | None) -> str:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("solving for 20 budgets", limit_seconds=limit_seconds, patience_seconds=0):
        return stderr.getvalue()


def test_what_takes_long_is_said_on_a_terminal_with_how_long_it_may_take(
    monkeypatch: pytest.MonkeyPatch, timers: list[_Timer]
) -> None:
    assert working(monkeypatch, _Terminal(), 60.0) == "solving for 20 budgets …, up\nto 60 s\n"
    assert working(monkeypatch, _Terminal(), None) == "solving for 20 budgets …\n"
    stderr = _Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("solving", patience_seconds=60):
        assert timers[-1].patience_seconds == 60 and not timers[-1].cancelled
    assert stderr.getvalue() == ""
    assert all(timer.cancelled for timer in timers)


@pytest.mark.usefixtures("timers")
def test_progress_is_quiet_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert working(monkeypatch, io.StringIO(), 60.0) == ""
    with click.Context(verb("solve")) as context:
        context.params["as_json"] = True
        stderr = _Terminal()
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress("solving", patience_seconds=0):
            assert stderr.getvalue() == ""


def test_an_error_breaks_no_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    line = "Error: " + "word " * 20
    for stream, lines in ((_Terminal(), 4), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stderr", stream)
        tell(line)
        assert stream.getvalue().count("\n") == lines
        assert stream.getvalue().split() == line.split()
