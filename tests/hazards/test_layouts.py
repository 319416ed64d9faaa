"""Tensors of every layout and subclass pass through recorded and planned steps, and the process lives on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.doors import OwnErrors, operator_routing
from tests.hazards.layouts import KINDS

ROOT = Path(__file__).parent.parent.parent

OURS = "autockpt's own recorder failed"


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """What training each kind under a budget and plain found, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.hazards.layouts"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = (json.loads(line) for line in run.stdout.splitlines() if line.startswith("{"))
    return {line["kind"]: line for line in lines}


@pytest.mark.parametrize("name", KINDS)
def test_tensors_of_every_layout_train_as_in_plain_steps(trained: dict[str, Any], name: str) -> None:
    """A forward that made a strided nested tensor ended the process: an operator's C++ code takes no error of ours."""
    assert trained[name]["wrong"] == []
    assert any(OURS in each for each in trained[name]["said"]) == (name == "unreadable")


class _Unlike(Exception):
    """An error of the user's own."""


class _Fails(nn.Module):
    """Raises from inside an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.fails = nn.Linear(4, 4), True
        self.error = _Unlike("theirs")
        self.error.__cause__ = ValueError("why")

    def forward(self, x: Tensor) -> Any:
        given: Any = x.as_subclass(_Raises)
        given.error = self.error
        return self.linear(given + 1 if self.fails else x).tanh()


class _Raises(Tensor):
    error: Exception

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise args[0].error


def test_errors_of_the_users_own_operators_come_out_unchanged() -> None:
    model = autockpt.apply(_Fails(), "1MB")
    for _ in range(2):
        with pytest.raises(_Unlike) as caught:
            model(torch.randn(3, 4))
        assert caught.value is model.error
        assert isinstance(caught.value.__cause__, ValueError)
    model.fails = False
    for _ in range(3):
        model(torch.randn(3, 4)).sum().backward()
    autockpt.plan_of(model)


def test_an_error_of_ours_around_an_operator_waits() -> None:
    """Before the operator and after it, and an interrupt as well; what the operator does comes out unchanged."""
    theirs = RuntimeError("theirs")

    def routed(router: Any, x: Tensor) -> tuple[OwnErrors, Any]:
        errors = OwnErrors()
        with operator_routing(router, errors):
            return errors, x.sum()

    def before(op: Any, given: Any, run: Any) -> Any:
        raise ZeroDivisionError("ours")

    def after(op: Any, given: Any, run: Any) -> Any:
        run()
        raise KeyboardInterrupt

    def both(op: Any, given: Any, run: Any) -> Any:
        try:
            return run()
        finally:
            raise ZeroDivisionError("ours")

    errors, found = routed(before, torch.ones(3))
    assert float(found) == 3.0
    with pytest.raises(autockpt.ProfilingError, match="ZeroDivisionError: ours"):
        errors.tell()
    errors, found = routed(after, torch.ones(3))
    assert float(found) == 3.0
    with pytest.raises(KeyboardInterrupt):
        errors.interrupt()
    failing: Any = torch.ones(3).as_subclass(_Raises)
    failing.error = theirs
    with pytest.raises(RuntimeError) as caught:
        routed(both, failing)
    assert caught.value is theirs
