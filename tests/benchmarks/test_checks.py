"""What the benchmark of the nets says of its rows."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from benchmarks.checks import clean, cost
from tests.doors import compare_check
from tests.zoo import Case


def build() -> Case:
    torch.manual_seed(0)
    layers = [module for _ in range(4) for module in (nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))]
    return Case(nn.Sequential(*layers).train(), {"input": torch.randn(256, 32)})


@pytest.mark.parametrize("planted", [False, True])
def test_an_alarm_stands_in_the_row(planted: bool) -> None:
    wrong = (
        mock.patch.object(compare_check, "all_same", lambda pairs: [False for _ in pairs])
        if planted
        else contextlib.nullcontext()
    )
    with mock.patch.dict(clean.MODELS, {"small": build}), wrong:
        row = clean.run_model("small")
    assert bool(clean.alarms(row)) == planted and not row["differing"]
    assert f"{int(planted)} with an alarm" in clean.show({"small": row}, {})


def test_what_is_refused_no_more_is_counted() -> None:
    def row(peak_bytes: int, *refused: str) -> dict[str, Any]:
        return {"refused": dict.fromkeys(refused, "a guess"), "peak_bytes": peak_bytes}

    said = clean.compared([(row(100, "a#0", "b#0"), row(80, "a#0")), (row(100), row(100))])
    assert "2 before, 1 now; fewer on 1 of 2 models" in said and "on 1 of them, at most by 20.0%" in said


def test_shares_are_sums_over_sums() -> None:
    times = {"step_seconds": [1.0, 3.0], "check_seconds": [0.0, 0.1]}
    row = {"never": times, "sampled": times, "always": times, "rehearsed_seconds": [3.0, 9.0, 1.0]}
    assert cost.shares(row) == {"sampled": 0.025, "always": 0.025, "rehearsed": 1.5}
