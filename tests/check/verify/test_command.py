"""``autockpt verify``: what it prints, where, and with which exit status."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from autockpt import Plan, Verification
from tests.doors import cli_main

MODELS = """
    import autockpt
    from tests.check.verify.models import BATCH, chain, counting, noise

    def good():
        return chain(None, None), BATCH

    def planned():
        return autockpt.apply(chain(None, None), plan=autockpt.Plan.of(["1"])), BATCH

    def bad():
        return chain(counting, None), BATCH

    def noisy():
        return chain(noise, None), BATCH
"""


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run ``autockpt verify`` on a function of `MODELS`; ``{plan}`` is a file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "some_models.py").write_text(textwrap.dedent(MODELS))
    Plan.of(["0"]).save(tmp_path / "plan.json")

    def call(function: str, *arguments: str) -> Result:
        words = [argument.format(plan=tmp_path / "plan.json") for argument in arguments]
        with pytest.raises(SystemExit) as exit_:
            cli_main(["verify", f"{tmp_path / 'some_models.py'}:{function}", *words], prog_name="autockpt")
        out, err = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Result(exit_.value.code, out, err)

    return call


@pytest.mark.parametrize(
    ("function", "arguments", "verdict"),
    [
        ("good", ["--plan", "{plan}"], "exact"),
        ("good", ["--plan", "{plan}", "--steps", "3"], "exact"),
        ("good", ["--budget", "1GB"], "nothing recomputed"),
        ("planned", [], "exact"),
        ("bad", ["--plan", "{plan}"], "different"),
        ("noisy", ["--plan", "{plan}"], "not repeatable"),
    ],
)
def test_the_text_begins_with_the_verdict_and_the_exit_status_follows_it(
    run: Run, function: str, arguments: list[str], verdict: str
) -> None:
    result = run(function, *arguments)
    assert result.status == (verdict != "exact")
    assert result.out.lower().startswith(f"{verdict}: ")
    assert result.err.count("\n") == result.status
    if result.status:
        assert result.err.lower().startswith(f"error: {verdict}: ")
    as_json = run(function, *arguments, "--json")
    assert (as_json.status, as_json.err.count("\n")) == (result.status, result.status)
    assert msgspec.json.decode(as_json.out)["schema"] == "autockpt.verification/1"
    assert msgspec.json.decode(as_json.out, type=Verification).verdict == verdict


def test_the_budget_counts_an_optimizer_by_name(run: Run) -> None:
    plain, counted = (
        msgspec.json.decode(run("good", "--budget", "1000", "--json", *more).out)["minimum_bytes"]
        for more in ([], ["--optimizer", "adam"])
    )
    assert counted > plain


def test_a_budget_that_nothing_meets(run: Run) -> None:
    result = run("good", "--budget", "1000", "--json")
    assert (result.status, msgspec.json.decode(result.out)["status"]) == (1, "infeasible")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "there is no plan to verify"),
        (["--plan", "{plan}", "--budget", "1GB"], 2, "at most one of --plan, --budget and --max-overhead"),
        (["--plan", "missing.json"], 2, "missing.json"),
        (["--plan", __file__], 2, "is a programme: name the function in it"),
        (["--plan", "{plan}", "--steps", "0"], 2, "--steps"),
        (["--budget", "8 G B"], 2, "8 G B"),
        (["--budget", "1GB", "--solver", "best"], 2, "is not one of 'all', "),
    ],
)
def test_misused(run: Run, arguments: list[str], status: int, words: str) -> None:
    result = run("good", *arguments)
    assert (result.status, result.out) == (status, "")
    assert words in result.err.splitlines()[-1]


def test_a_plan_of_another_model(run: Run, tmp_path: Path) -> None:
    Plan.of(["other"]).save(tmp_path / "other.json")
    result = run("good", "--plan", str(tmp_path / "other.json"))
    assert (result.status, result.out) == (1, "")
    assert "has no 'other'" in result.err
