"""`autockpt profile` and `demo`, and help."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import autockpt
from autockpt import Profile, Verification, verify
from tests.cli.shell import Run
from tests.doors import cli_demo, recorder

MODELS = """
    import torch

    def tiny():
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        return model, torch.randn(32, 64)

    def lonely():
        return torch.nn.Linear(2, 2)

    def broken():
        raise RuntimeError("no\\nluck")

    def frozen():
        return torch.nn.Linear(2, 2).requires_grad_(False), torch.randn(2, 2)

    class Mismatched(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x)

    def mismatched():
        return Mismatched(), torch.randn(3, 3)

    constant = 7
"""


@pytest.fixture
def models_file(tmp_path: Path) -> Path:
    path = tmp_path / "some_models.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


def test_profile_a_function_of_a_file(run: Run, models_file: Path, tmp_path: Path) -> None:
    """In a process of its own: torch's profiler would write to the file descriptor of stderr, past Python."""
    output = tmp_path / "tiny.json"
    command = [sys.executable, "-m", "autockpt", "profile", f"{models_file}:tiny", "-o", str(output)]
    text = subprocess.run(command, capture_output=True, text=True, check=False)
    assert text.returncode == 0
    assert text.stdout.startswith("Sequential: plain peak ")
    assert f"\nNext: autockpt frontier {output}\n" in text.stdout
    assert len(text.stdout.splitlines()) <= 20
    assert text.stderr == f"wrote {output}\n"
    assert Profile.load(output).model == "Sequential"
    document = run("profile", f"{models_file}:tiny", "--mode", "measured", "--json")
    assert json.loads(document.out)["schema"] == "autockpt.profile/3"
    assert document.err == ""


def test_profile_a_function_of_a_module(
    run: Run, models_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_package").mkdir()
    models_file.rename(tmp_path / "some_package" / "zoo.py")
    monkeypatch.chdir(tmp_path)
    assert run("profile", "some_package.zoo:tiny").status == 0


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("{file}", 2, "names no function"),
        ("{file}:missing", 2, "has no function 'missing'"),
        ("{file}:constant", 2, "it is one int"),
        ("{file}:lonely", 2, "it returned one Linear"),
        ("{file}:frozen", 1, "no parameter that requires a gradient"),
        ("missing.py:tiny", 2, "no such file"),
        ("missing.module:tiny", 2, "No module named 'missing'"),
    ],
)
def test_profile_of_a_wrong_target(run: Run, models_file: Path, target: str, status: int, words: str) -> None:
    result = run("profile", target.format(file=models_file))
    assert (result.status, result.out) == (status, "")
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1
    assert words in result.err


def test_profile_with_an_optimizer_by_name(run: Run, models_file: Path) -> None:
    found = json.loads(run("profile", f"{models_file}:tiny", "--mode", "fake", "--optimizer", "adamw", "--json").out)
    assert found["optimizer"] == "adamw, by its defaults: an estimate"
    assert found["static"]["optimizer_bytes"] == 2 * found["optimizer_step_bytes"] > 0
    unknown = run("profile", f"{models_file}:tiny", "--optimizer", "adamwx")
    assert (unknown.status, unknown.out) == (1, "")
    assert "did you mean 'adamw'" in unknown.err


def test_profile_of_a_loop_that_lets_go_of_outputs(run: Run, models_file: Path) -> None:
    asked = ("profile", f"{models_file}:tiny", "--mode", "fake", "--json")
    held, freed = (json.loads(run(*asked, *more).out) for more in ((), ("--outputs-freed",)))
    deaths = [sum(found["tensors"]["death"]) for found in (held, freed)]
    assert deaths[0] > deaths[1]


def test_what_the_users_code_raises_has_its_traceback(run: Run, models_file: Path) -> None:
    """Only that says where it is; how autockpt came to call it tells the user nothing."""
    result = run("profile", f"{models_file}:broken")
    assert (result.status, result.out) == (2, "")
    assert f'File "{models_file}", line 12, in broken\n' in result.err
    assert result.err.endswith(f"Error: {models_file}:broken raised RuntimeError: no luck\n")
    for arguments in (("profile",), ("verify", "--budget", "min"), ("solve", "--budget", "min"), ("explain",)):
        result = run(arguments[0], f"{models_file}:mismatched", *arguments[1:])
        assert (result.status, result.out) == (2, "")
        assert ", in forward\n    return self.inner(x)\n" in result.err
        assert str(Path(autockpt.__file__).parent) not in result.err
        assert result.err.splitlines()[-1].startswith(
            f"Error: a step of {models_file}:mismatched raised RuntimeError: "
        )


def test_an_error_of_our_own_shows_where_it_is(run: Run, models_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "record_step", None)
    result = run("profile", f"{models_file}:tiny")
    assert (result.status, result.out) == (2, "")
    assert str(recorder.__file__) in result.err


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shrink the demo's model; half of the peak stays within reach. The demo's one thread is its own."""
    sizes = {"LAYERS": 4, "WIDTH": 64, "HEADS": 2, "VOCABULARY": 64, "BATCH": 4, "TOKENS": 64, "STEPS": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(cli_demo, name, size)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("small_demo")
def test_demo(run: Run) -> None:
    result = run("demo", "--json")
    assert (result.status, result.err) == (0, "")
    found = msgspec.convert(json.loads(result.out)["verification"], Verification)
    assert (found.exact, found.steps) == (True, 2)
    assert found.measured_peak_bytes is not None
    assert found.budget_bytes is not None
    assert found.measured_plain_peak_bytes is not None
    assert 0 < found.measured_peak_bytes <= found.budget_bytes == found.measured_plain_peak_bytes // 2
    assert found.replays == 2 * found.segments > 0
    text = found.explain()
    assert "predicted peak" in text
    assert "measured peak" in text


@pytest.mark.usefixtures("small_demo")
def test_demo_fails_where_steps_differ_or_leave_the_budget(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(*given: Any, **asked: Any) -> Verification:
        found = verify(*given, **asked)
        return msgspec.structs.replace(found, verdict="different", measured_peak_bytes=2**40)

    monkeypatch.setattr(autockpt, "verify", worse)
    result = run("demo")
    assert result.status == 1
    assert result.err.startswith("Error: Different: ")
    assert "The measured peak, 1,099,511,627,776 bytes, exceeds the budget" in result.err


def test_demo_without_transformers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = run("demo")
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("Error: ")
    assert result.err.endswith("pip install transformers\n")


def test_help_and_version(run: Run) -> None:
    assert run("--version").out.startswith("autockpt ")
    assert "Exit status" in run("-h").out
