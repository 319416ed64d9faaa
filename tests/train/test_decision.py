"""The table of what is decided as a step begins."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.doors import Decision, Situation, governor_decide

NOTHING: dict[str, Any] = {}
ALIKE: dict[str, Any] = {"alike": True}
RECORDED: dict[str, Any] = {**ALIKE, "recorded": True}
TIMED = {**RECORDED, "timed": True}
PLANNED = {**TIMED, "planned": True}


@pytest.mark.parametrize(
    ("known", "decision"),
    [
        (NOTHING, Decision("Record")),
        ({"timed": True}, Decision("Record")),
        ({"timed": True, "planned": True}, Decision("Record")),  # the last step did what no recording covers
        (ALIKE, Decision("Time")),  # a larger one
        ({**ALIKE, "timed": True}, Decision("Record")),
        (RECORDED, Decision("Time")),
        ({**RECORDED, "surprise": "AdamW took its first step"}, Decision("Time")),
        (TIMED, Decision("Replan", "a step of its kind was recorded")),
        (PLANNED, Decision("Keep")),
        ({**PLANNED, "surprise": "AdamW took its first step"}, Decision("Replan", "AdamW took its first step")),
        ({**PLANNED, "unfit": "9 MB at least"}, Decision("Lowest", "9 MB at least")),
        ({**PLANNED, "unfit": "9 MB", "surprise": "measured 10 MB"}, Decision("Replan", "measured 10 MB")),
    ],
)
def test_the_table(known: dict[str, Any], decision: Decision) -> None:
    assert governor_decide(Situation(**known)) == decision


def test_nothing_runs_under_a_plan_that_was_not_recorded_and_timed() -> None:
    flags = (False, True)
    for recorded, timed, planned, surprised, unfit in product(flags, repeat=5):
        situation = Situation(
            alike=recorded,
            recorded=recorded,
            timed=timed,
            planned=planned,
            surprise="x" * surprised,
            unfit="x" * unfit,
        )
        what = governor_decide(situation).what
        assert (what in ("Record", "Time")) == (not (recorded and timed))
        assert what != "Keep" or (planned and not surprised and not unfit)
