"""A verb is given a function: a step is recorded without running it, unless somebody asks for one, or it must run."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Run

MODELS = """
    import torch

    def model():
        torch.manual_seed(0)
        block = lambda: torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
        return torch.nn.Sequential(*(block() for _ in range(4)))

    def build():
        return model(), torch.randn(512, 64), None, "adamw"

    def without_values():
        return model().to("meta"), torch.empty(2**20, 64, device="meta"), None, "adamw"

    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            out = self.inner(x)
            return out if out.sum().item() > 1e9 else 2 * out

    def branching():
        return Branching(), torch.randn(512, 64)
"""

ASKED: dict[str, tuple[object, ...]] = {
    "solve": ("--budget", "min"),
    "explain": (),
    "explain a plan": ("--budget", "min"),
    "frontier": ("--points", 3),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


def asked(run: Run, name: str, source: str, *options: object) -> Any:
    return run(name.split()[0], source, *ASKED[name], *options)


def seconds_of(run: Run, name: str, source: str, *options: object) -> tuple[str, float]:
    """Return the mode and the seconds of the plain step that a document has."""
    result = asked(run, name, source, "--json", *options)
    assert result.status == 0, result.err
    document = json.loads(result.out)
    found = document["plans"][0] if "plans" in document else document
    seconds = found.get("plain_seconds", found.get("recorded_plain_seconds"))
    return found.get("profile_mode", found.get("mode")), seconds


@pytest.mark.parametrize("name", ASKED)
def test_nothing_runs_and_the_page_says_so(run: Run, file: Path, name: str) -> None:
    """A tensor of the meta device could not: a step that ran would be refused."""
    result = asked(run, name, f"{file}:without_values")
    assert (result.status, result.err) == (0, "")
    assert "nothing ran: predicted, seconds by the roofline of a100" in result.out
    assert "; --mode measured runs a step" in " ".join(result.out.split())
    assert "no optimizer counted" not in result.out


@pytest.mark.parametrize("name", ASKED)
def test_a_device_has_its_own_seconds(run: Run, file: Path, name: str) -> None:
    source = f"{file}:without_values"
    result = asked(run, name, source, "--device", "t4")
    assert "seconds by the roofline of t4" in result.out
    slow, fast = (seconds_of(run, name, source, "--device", device) for device in ("t4", "h100"))
    assert slow[0] == fast[0] == "fake"
    assert slow[1] > 5 * fast[1] > 0


@pytest.mark.parametrize("name", ASKED)
def test_a_step_runs_where_it_is_asked_for(run: Run, file: Path, name: str) -> None:
    result = asked(run, name, f"{file}:build", "--mode", "measured")
    assert (result.status, result.err) == (0, "")
    assert "predicted from a step that ran" in result.out
    assert "nothing ran" not in result.out and "--mode measured runs" not in result.out


@pytest.mark.parametrize("name", ASKED)
def test_a_step_runs_where_fake_tensors_do_not_do(run: Run, file: Path, name: str) -> None:
    result = asked(run, name, f"{file}:branching")
    assert result.status == 0
    assert result.err == (
        "a step on fake tensors, which have no values, failed, so a real one runs "
        "(DataDependentOutputException: aten._local_scalar_dense.default)\n"
    )
    assert "predicted from a step that ran" in result.out


@pytest.mark.parametrize("option", [("--mode", "fake"), ("--device", "h100")])
def test_it_does_not_where_fake_ones_were_asked_for(run: Run, file: Path, option: tuple[str, str]) -> None:
    result = run("solve", f"{file}:branching", "--budget", "min", *option)
    assert (result.status, result.out) == (2, "")
    assert result.err.splitlines()[-1].endswith("so tensors have no values; try --mode measured")


def test_what_comes_next_asks_for_the_same(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    for verb, options, then in (
        ("solve", ("--mode", "fake"), "solve train.py:build --budget min --mode fake -o plan.json"),
        ("explain", ("--device", "t4", "--optimizer", "sgd"), "frontier train.py:build --device t4 --optimizer sgd"),
        ("explain a plan", ("--optimizer", "sgd"), "solve train.py:build --budget min --optimizer sgd -o plan.json"),
        ("frontier", ("--device", "t4"), "--device t4 -o plan.json"),
    ):
        result = asked(run, verb, "train.py:build", *options)
        assert f"{then}\n" in result.out.partition("Next: autockpt ")[2]


def test_frontier_says_nothing_of_seconds_that_the_host_takes(run: Run, file: Path) -> None:
    out = " ".join(run("frontier", f"{file}:build", "--points", 3).out.split())
    assert "How much slower is not known: the host takes longer to launch the step than its kernels run" in out
    assert "%" not in out.partition("recomputed")[2].partition("nothing:")[0]


def test_the_profile_of_a_plan_is_recorded_as_that_of_the_plan_was(run: Run, file: Path, tmp_path: Path) -> None:
    source = f"{file}:build"
    for mode, words in (("measured", "predicted from a step that ran"), ("fake", "nothing ran: predicted")):
        plan = tmp_path / f"{mode}.json"
        assert run("solve", source, "--budget", "min", "--mode", mode, "-o", plan).status == 0
        assert words in run("explain", plan, "--profile", source).out


def test_a_plan_from_a_step_that_did_not_run_is_one_for_the_model(run: Run, file: Path, tmp_path: Path) -> None:
    source, plan = f"{file}:build", tmp_path / "plan.json"
    assert run("solve", source, "--budget", "min", "-o", plan).status == 0
    assert json.loads(plan.read_text())["segments"]
    result = run("verify", source, "--plan", plan)
    assert result.status == 0, result.err
