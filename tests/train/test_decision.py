"""The table of what is decided as a step begins."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest

from autockpt import Plan, Profile, Segment
from tests.doors import (
    Batch,
    BatchKind,
    Decision,
    Goal,
    History,
    Known,
    PlanReport,
    Ready,
    StepBegins,
    StepState,
    holds_kind,
    step_begins,
)
from tests.handmade import chain_profile


def batch(rows: int) -> Batch:
    return Batch(kind=("x",), numbers=(), shapes=((rows, 4),))


def kind(rows: int, gradient_bytes: int = 0) -> BatchKind:
    return BatchKind(batches=(batch(rows),), gradient_bytes=gradient_bytes)


def ready(unfit: str = "") -> Ready:
    return Ready(kind=kind(8), profile=cast("Any", None), plan=Plan(segments=()), unfit=unfit)


NEW = StepState.of(Goal(budget=1000))
KNOWN, PLAN, LOWEST = Known(kind=kind(8), anatomy={}), ready(), ready("9 MB at least")
NOTHING = History()
RECORDED = History(known=(KNOWN,))
TIMED = History(known=(KNOWN,), slower=1.0)
PLANNED = History(known=(KNOWN,), slower=1.0, ready=(PLAN,), current=PLAN)
GROWN, REFUSED = {"outgrown": "AdamW"}, Decision("Replan", "some calls cannot be replayed")


def decided(state: StepState, rows: int, **seen: Any) -> Decision:
    return step_begins(state, StepBegins(batch=batch(rows), **seen))[1]


@pytest.mark.parametrize(
    ("history", "rows", "seen", "decision"),
    [
        (NOTHING, 8, {}, Decision("Record")),
        (History(slower=1.0), 8, {}, Decision("Record")),
        (RECORDED, 16, {}, Decision("Time")),  # a larger one
        (TIMED, 16, {}, Decision("Record")),
        (PLANNED, 16, {}, Decision("Record")),
        (PLANNED, 8, {"gradient_bytes": 4}, Decision("Record")),
        (RECORDED, 8, {}, Decision("Time")),
        (RECORDED, 8, GROWN, Decision("Time")),
        (TIMED, 8, {}, Decision("Replan", "a step of its kind was recorded")),
        (TIMED, 4, {}, Decision("Replan", "a step of its kind was recorded")),
        (PLANNED, 8, {}, Decision("Keep", ready=PLAN)),
        (PLANNED, 4, {}, Decision("Keep", ready=PLAN)),
        (PLANNED, 8, GROWN, Decision("Replan", "AdamW keeps more than the plan counts on")),
        (History(slower=1.0, ready=(PLAN,)), 8, {}, Decision("Keep", ready=PLAN)),  # its recording is the oldest
        (History(slower=1.0, ready=(LOWEST,)), 8, {}, Decision("Lowest", "9 MB at least", LOWEST)),
        (
            History(known=(KNOWN,), slower=1.0, ready=(LOWEST,)),
            8,
            {"report": PlanReport(faults={"h#0": "draws"})},
            REFUSED,
        ),
        (History(slower=1.0, ready=(LOWEST, PLAN), current=PLAN), 8, {}, Decision("Keep", ready=PLAN)),
        (PLANNED.without_plans(), 8, {}, Decision("Replan", "a step of its kind was recorded")),
        (
            TIMED.learning(Known(kind=kind(12), anatomy={})),
            15,
            {},
            Decision("Replan", "a step of its kind was recorded"),
        ),
        (TIMED.learning(Known(kind=kind(12), anatomy={})), 16, {}, Decision("Record")),  # more than the headroom
    ],
)
def test_the_table(history: History, rows: int, seen: dict[str, Any], decision: Decision) -> None:
    assert decided(replace(NEW, history=history), rows, **seen) == decision


@pytest.mark.parametrize("history", [RECORDED, TIMED, PLANNED])
def test_a_step_is_recorded_after_one_that_did_what_no_recording_covers(history: History) -> None:
    assert decided(replace(NEW, history=history, unknown=True), 8) == Decision("Record")


def test_nothing_runs_under_a_plan_that_was_not_recorded_and_timed() -> None:
    flags = (False, True)
    for recorded, timed, planned, surprised, unfit in product(flags, repeat=5):
        made = (ready("x" * unfit),) if planned and recorded else ()
        history = History(known=(KNOWN,) * recorded, slower=1.0 if timed else None, ready=made)
        what = decided(replace(NEW, history=history), 8, outgrown="AdamW" * surprised).what
        assert (what in ("Record", "Time")) == (not (recorded and timed))
        assert what != "Keep" or (planned and not surprised and not unfit)


def test_what_is_known_is_never_changed_in_place() -> None:
    later = PLANNED.refusing({"h.0#0": "draws"}).counting(8)
    assert not later.ready and later.current is None and later.error_bytes == 8
    assert PLANNED.current is PLAN and not PLANNED.refused and not PLANNED.error_bytes
    assert PLANNED.following(batch(8), 0, ()) is PLANNED  # nothing was made before it
    assert PLANNED.following(batch(8), 0, (64,)).known[0].before_bytes == 64
    assert KNOWN.before_bytes == 0


def test_a_plan_for_another_kind_of_step_suits_one_that_has_its_segments_whole_or_not_at_all() -> None:
    """Of a segment that a step has in part, the rest would never come, and its frame would stay open for it."""
    profile, asked = chain_profile(), list[tuple[str, ...]]()
    first, second = profile.calls[1].key, "elsewhere#0"

    def restated(plan: Plan, _: Profile) -> Plan | None:
        asked.append(tuple(call for segment in plan.segments for call in segment.calls))
        return plan

    def suits(*segments: tuple[str, ...]) -> bool:
        return holds_kind(Plan(segments=tuple(Segment(calls=calls) for calls in segments)), profile, restated)

    assert suits((first,), (second,)) and asked == [(first,)]  # what is elsewhere alone is no matter
    assert not suits((first, second))
    assert not holds_kind(Plan(segments=(Segment(calls=(first,)),)), profile, lambda plan, _: None)
