"""What the function that a user names may return."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Run

MODELS = """
    import torch

    BATCH, TARGET = torch.randn(64, 32), torch.randn(64, 32)

    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))

    def loss(out):
        return torch.nn.functional.mse_loss(out, TARGET)

    def two():
        return model(), BATCH

    def three():
        return model(), BATCH, loss

    def four():
        made = model()
        return made, BATCH, loss, torch.optim.AdamW(made.parameters())

    def named():
        return model(), BATCH, None, "adamw"

    def several():
        made = model()
        first = torch.optim.SGD(made[0].parameters(), momentum=0.9, lr=0.1)
        return made, BATCH, None, [first, torch.optim.AdamW(made[2].parameters())]

    def five():
        return model(), BATCH, loss, None, 1

    def strange_loss():
        return model(), BATCH, 0.5

    def strange_optimizer():
        return model(), BATCH, loss, 3

    def swapped():
        return BATCH, model()
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "targets.py"
    path.write_text(textwrap.dedent(MODELS))
    return str(path)


def recorded(run: Run, target: str, *options: str) -> Any:
    result = run("profile", target, "--json", *options)
    assert result.status == 0, result.err
    return json.loads(result.out)


def test_a_loss_and_an_optimizer_that_are_returned_are_counted(run: Run, target: str) -> None:
    two, three, four, named, several = (
        recorded(run, f"{target}:{name}") for name in ("two", "three", "four", "named", "several")
    )
    batch_bytes = 64 * 32 * 4
    assert two["static"].get("other_bytes", 0) == 0
    assert three["static"]["other_bytes"] == four["static"]["other_bytes"] == batch_bytes  # the loss's target
    assert [bool(each.get("optimizer")) for each in (two, three, four, named, several)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    state_bytes = 2 * four["static"]["parameter_bytes"]
    for each in (four, named):
        assert state_bytes <= each["static"]["optimizer_bytes"] < 1.1 * state_bytes


def test_the_option_goes_before_the_optimizer_that_is_returned(run: Run, target: str) -> None:
    assert recorded(run, f"{target}:named", "--optimizer", "sgd")["optimizer"].startswith("sgd")


@pytest.mark.parametrize("name", ["three", "four", "named"])
def test_they_are_verified_with_it(run: Run, target: str, name: str) -> None:
    result = run("verify", f"{target}:{name}", "--budget", "min")
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("five", "it returned a tuple of 5 (Sequential, Tensor, function, NoneType, int)"),
        ("swapped", "it returned a tuple of 2 (Tensor, Sequential)"),
        ("strange_loss", "returned is one float; it must be a function from the model's outputs to a scalar, or None"),
        ("strange_optimizer", "returned is one int; it must be one of torch.optim, its name, a list of them, or None"),
    ],
)
def test_what_else_is_returned_is_named(run: Run, target: str, name: str, words: str) -> None:
    for verb in ("profile", "verify"):
        result = run(verb, f"{target}:{name}")
        assert (result.status, result.out) == (2, "")
        assert words in result.err
        assert result.err.count("\n") == 1


@pytest.mark.parametrize("mode", ["fake", "measured"])
@pytest.mark.parametrize("arguments", [["solve", "--budget", "min"], ["frontier", "--points", 3], ["explain"]])
def test_a_function_stands_where_a_profile_may(run: Run, target: str, arguments: list[object], mode: str) -> None:
    """The step is the one that `autockpt profile` records, with the loss and the optimizer that are returned."""
    result = run(*arguments, f"{target}:four", "--json", "--mode", mode)
    assert (result.status, result.err) == (0, "")
    document = json.loads(result.out)
    found = document if "plans" not in document else document["plans"][0]
    profile = run("profile", f"{target}:four", "--json", "--mode", mode).out.encode()
    assert found["plain_peak_bytes"] == json.loads(run("explain", "-", "--json", stdin=profile).out)["plain_peak_bytes"]


def test_a_function_stands_for_the_profile_of_a_plan(run: Run, target: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("solve", f"{target}:four", "--budget", "min", "-o", plan).status == 0
    assert "Predicted memory over the step" in run("explain", plan, "--profile", f"{target}:four", "-v").out
    result = run("solve", f"{target}:five", "--budget", "min")
    assert (result.status, result.err.count("\n")) == (2, 1)


def test_a_file_with_a_colon_in_its_name_is_a_file(run: Run, target: str, tmp_path: Path) -> None:
    path = tmp_path / "a:b"
    assert run("profile", f"{target}:two", "-o", path).status == 0
    assert run("explain", path, "-v").out.startswith("Profile of Sequential")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_checkpointing_of_transformers_is_off_while_a_step_is_recorded_and_that_is_said(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "train.py"
    file.write_text("from tests.train.test_switches import BATCH, model\n\ndef build():\n    return model(), BATCH\n")
    out = " ".join(run("profile", f"{file}:build", "-v").out.split())
    assert "gradient_checkpointing is on, and is switched off while a step is recorded" in out
    assert caplog.text.count("is switched off while a step is recorded") == 1
    assert "torch.utils.checkpoint regions" not in out


def test_what_a_function_prints_is_no_part_of_the_document(run: Run, tmp_path: Path) -> None:
    """It stood before the JSON."""
    path = tmp_path / "prints.py"
    path.write_text(textwrap.dedent(MODELS) + "\ndef prints():\n    print('hello')\n    return two()\n")
    result = run("explain", f"{path}:prints", "--json")
    assert json.loads(result.out) and "hello" in result.err


def test_a_function_that_ends_the_process_is_an_error(run: Run, tmp_path: Path) -> None:
    """The command ended with its status, and without a word."""
    path = tmp_path / "ends.py"
    path.write_text("import sys\n\ndef ends():\n    sys.exit(3)\n")
    result = run("explain", f"{path}:ends")
    assert result.status == 2 and "ended the process, by sys.exit(3)" in " ".join(result.err.split())
