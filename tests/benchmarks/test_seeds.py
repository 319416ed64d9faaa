"""The table of headlines: it is what the stored rows say, and each row has its fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.environment import RESULTS
from benchmarks.seeds import measured, predicted
from benchmarks.seeds.__main__ import FOLDER
from benchmarks.seeds.claims import CLAIMS
from benchmarks.seeds.models import MicroBatches
from benchmarks.seeds.report import FIELDS, KINDS, report
from tests.zoo import Case

STORED: dict[str, Any] = json.loads((FOLDER / "results.json").read_text())
ROWS = {row["name"]: row for row in STORED["rows"]}


def test_the_table_is_made_from_the_stored_rows() -> None:
    shown = (FOLDER / "README.md").read_text().partition(RESULTS)[2]
    assert shown.endswith(f"\n\n{report(STORED)}\n")
    assert STORED["environment"]["command"].startswith("python -m benchmarks.seeds")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_row_has_its_fields_and_its_words_are_those_of_its_figures(claim: Any) -> None:
    row = ROWS[claim.name]
    assert row == claim.row(row["figures"]) | {"seconds": row["seconds"]}
    assert all(row[field] for field in FIELDS) and 2016 <= row["year"] <= 2026 and row["kind"] in KINDS
    assert bool(row["figures"]) == (row["kind"] != "not asked")
    if row["kind"] == "measured":  # each was predicted before, and is within a step of no recomputing and of one more
        assert any(key.startswith("predicted_overhead") for key in row["figures"])
        assert all(0 < share < 1 for key, share in row["figures"].items() if key.startswith("measured_share"))


def test_every_headline_is_there_once() -> None:
    names = [claim.name for claim in CLAIMS]
    assert list(ROWS) == names and len(set(names)) == len(names)
    asked = "openai chen oneflow megatron gpipe torchgpipe checkmate monet rockmate hiremate dtr titan deepcompile"
    assert {*asked.split(), "unsloth", "axolotl"} <= set(names)


def test_modes_differ_by_the_last_micro_batch() -> None:
    torch.manual_seed(0)
    hidden = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))

    class Losing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = hidden

        def forward(self, x: torch.Tensor) -> Any:
            class Out:
                loss = self.hidden(x).square().mean()

            return Out

    case = Case(MicroBatches(Losing(), measured.PARTS), {"x": torch.randn(256, 8)})
    profile = measured.recorded(case)
    plans = {mode: make(profile) for mode, make in measured.MODES.items()}
    parts = {mode: {call[-1] for each in plan.segments for call in each.calls} for mode, plan in plans.items()}
    assert parts == {"always": set("0123"), "except_last": set("012"), "never": set()}
    assert predicted.adding(profile, plans["never"]) == 1.0
