"""What follows from what is seen of a step: a table, and whatever a loop may do in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt import Plan
from tests.doors import (
    MOST_RECORDED,
    MOST_TRIES,
    Batch,
    BatchKind,
    Decision,
    Goal,
    History,
    Known,
    PlanReport,
    Ran,
    Ready,
    Recorded,
    StepBegins,
    StepEnds,
    StepState,
    step_begins,
    step_ends,
    step_grows,
)

BUDGET_BYTES = 1000
SECONDS: Any = SimpleNamespace(plain_seconds=1.0, scaled=lambda factor: SECONDS)
TIMING: Any = SimpleNamespace(kinds=("enter",), seconds=lambda run, recorded: SECONDS)
PROFILE: Any = SimpleNamespace(backward_ticks=(), nested_ticks=())


def batch(rows: int, name: object = "x") -> Batch:
    return Batch(kind=(name,), numbers=(), shapes=((rows, 4),))


def kind(rows: int, forwards: int = 1, name: object = "x") -> BatchKind:
    return BatchKind(batches=(batch(rows, name),) * forwards, gradient_bytes=0)


def recorded(*, sets_itself_up: bool = False) -> Recorded:
    run: Any = SimpleNamespace(calls=(), functions=(), marks={}, sets_itself_up=sets_itself_up)
    return Recorded(run=run, seconds=SECONDS, static=cast(Any, None), anatomy={}, reached=frozenset())


def ready(of: BatchKind, unfit: str = "") -> Ready:
    return Ready(kind=of, profile=PROFILE, plan=Plan(peak_bytes=900), unfit=unfit)


PLAN = ready(kind(8))
NEW = StepState.of(Goal(budget=BUDGET_BYTES))
KNOWN = Known(kind=kind(8), anatomy={}, nodes=1)
PLANNED = replace(NEW, history=History(known=(KNOWN,), slower=1.0, ready=(PLAN,), current=PLAN))
STEP = StepEnds(kind=kind(8), nodes=1, backwards=1, backward=True)
RECORDED, UNDER_PLAN = replace(STEP, ran=Ran(recorded=recorded())), replace(STEP, ran=Ran(ready=PLAN))


class Row(NamedTuple):
    """What is seen of a step that is over, what then differs in the state, and how the warning begins."""

    state: StepState
    seen: StepEnds
    after: dict[str, Any]
    warning: str = ""


ENDS = {
    "nothing new": Row(replace(PLANNED, nodes={kind(8): 1}), UNDER_PLAN, {}),
    "its nodes are remembered": Row(PLANNED, UNDER_PLAN, {"nodes": {kind(8): 1}}),
    "more nodes": Row(
        replace(PLANNED, nodes={kind(8): 1}),
        replace(UNDER_PLAN, nodes=2),
        {"nodes": {kind(8): 2}, "tries": 1, "unknown": True},
        "a step made other calls",
    ),
    "more nodes, once too often": Row(
        replace(PLANNED, nodes={kind(8): 1}, tries=MOST_TRIES), replace(UNDER_PLAN, nodes=2), {}
    ),
    "calls that no plan knows": Row(
        replace(PLANNED, nodes={kind(8): 1}),
        replace(UNDER_PLAN, report=PlanReport(unplanned=True)),
        {"tries": 1, "unknown": True},
        "a step made other calls",
    ),
    "such calls without a backward": Row(
        replace(PLANNED, unplanned=True), replace(UNDER_PLAN, backward=False), {"unplanned": False}
    ),
    "calls that cannot be replayed": Row(
        replace(PLANNED, nodes={kind(8): 1}),
        replace(UNDER_PLAN, report=PlanReport(faults={"h#0": "draws"})),
        {"faults": {"h#0": "draws"}},
    ),
    "more backwards than planned": Row(
        replace(PLANNED, nodes={kind(8): 1}, number=5),
        replace(UNDER_PLAN, backwards=2),
        {"tries": 1, "unknown": True, "due": 10, "uncovered_at": 5},
        "a step had more backward passes",
    ),
    "recorded": Row(NEW, RECORDED, {"nodes": {kind(8): 1}, "recorded": 1}),
    "recorded, as was looked for": Row(
        replace(PLANNED, nodes={kind(8): 2}, unknown=True),
        replace(RECORDED, nodes=2),
        {"unknown": False, "recorded": 1},
    ),
    "recorded, but not what was looked for": Row(
        replace(PLANNED, nodes={kind(8): 1}, unknown=True, uncovered=True, uncovered_at=3, due=6),
        RECORDED,
        {"tries": 1, "recorded": 1},
    ),
    "not what was looked for, once too often": Row(
        replace(PLANNED, nodes={kind(8): 1}, unknown=True, uncovered=True, tries=MOST_TRIES - 2, uncovered_at=3, due=6),
        RECORDED,
        {"tries": MOST_TRIES - 1, "unknown": False, "uncovered": False, "recorded": 1},
    ),
    "recorded once too often": Row(
        replace(NEW, nodes={kind(8): 1}, recorded=MOST_RECORDED - 1),
        RECORDED,
        {"recorded": MOST_RECORDED, "endless": True},
    ),
    "what sets itself up": Row(
        replace(NEW, nodes={kind(8): 1}),
        replace(STEP, ran=Ran(recorded=recorded(sets_itself_up=True))),
        {"set_up": True},
    ),
    "hooks of the user's": Row(
        replace(NEW, nodes={kind(8): 1}),
        replace(STEP, ran=Ran(recorded=recorded(), foreign=True)),
        {"given_up": True},
        "saved_tensors_hooks",
    ),
    "a recording that fails": Row(
        replace(NEW, nodes={kind(8): 1}), replace(STEP, failure="why"), {"tries": 1}, "the recording of a step is"
    ),
    "a recording that fails too often": Row(
        replace(NEW, nodes={kind(8): 1}, tries=MOST_TRIES - 1),
        replace(STEP, failure="why"),
        {"tries": MOST_TRIES, "given_up": True},
        "no step could be recorded",
    ),
    "a recording without a graph": Row(NEW, replace(STEP, failure="why", differentiable=False, backward=False), {}),
    "a forward that still waits": Row(
        replace(NEW, nodes={kind(8): 1}),
        replace(STEP, failure="why", left_waiting=True),
        {"tries": 1, "waited": 1},
        "the recording of a step is",
    ),
    "timed in vain": Row(
        replace(NEW, nodes={kind(8): 1}, number=3),
        replace(STEP, ran=Ran(timing=cast(Any, SimpleNamespace(kinds=())))),
        {"untimed": 1, "unknown": True, "uncovered": True, "due": 6, "uncovered_at": 3},
    ),
}


@pytest.mark.parametrize("row", ENDS.values(), ids=ENDS.keys())
def test_what_follows_as_a_step_ends(row: Row) -> None:
    after, warnings = step_ends(row.state, row.seen)
    assert replace(after, history=row.state.history) == replace(row.state, **row.after)
    assert [each.startswith(row.warning) for each in warnings] == [True] * bool(row.warning)


def test_what_is_recorded_is_known_and_drops_plans_only_if_it_was_looked_for() -> None:
    assert step_ends(NEW, RECORDED)[0].history.known[0].kind == kind(8)
    larger = replace(RECORDED, kind=kind(16))
    assert step_ends(PLANNED, larger)[0].history.ready == (PLAN,)
    assert step_ends(replace(PLANNED, unknown=True), larger)[0].history.ready == ()
    assert step_ends(replace(PLANNED, unknown=True), RECORDED)[0].history.ready == (PLAN,)  # as much was known


@pytest.mark.parametrize("more", [{"nodes": 2}, {"backwards": 2}, {"keeping": 1}], ids=str)
def test_a_recording_replaces_one_of_its_kind_that_did_less(more: dict[str, int]) -> None:
    longer, before = replace(KNOWN, **cast(Any, more)), History(known=(KNOWN,))
    assert before.learning(KNOWN) is before
    after = before.learning(longer)
    assert after.known == (longer,) and after.learning(KNOWN) is after


def test_a_step_with_more_forwards_than_planned_is_looked_for_once_and_then_when_it_is_due() -> None:
    """The next step is recorded; if that is not it, one that comes at the same interval again."""
    first = step_grows(replace(PLANNED, number=5))
    assert (first.unknown, first.uncovered, first.uncovered_at, first.due) == (True, True, 5, 10)
    assert step_grows(first) is first
    second = step_grows(replace(first, number=8, unknown=False, uncovered=False))
    assert (second.unknown, second.uncovered, second.uncovered_at, second.due) == (False, False, 8, 11)
    due, decision = step_begins(replace(second, number=10), StepBegins(batch=batch(8)))
    assert due.unknown and due.uncovered and decision == Decision("Record")
    exhausted = replace(second, number=10, tries=MOST_TRIES)
    assert step_begins(exhausted, StepBegins(batch=batch(8)))[1] == Decision("Keep", ready=PLAN)
    assert not step_grows(replace(PLANNED, number=5, tries=MOST_TRIES)).unknown


def test_only_a_step_under_a_plan_ends_a_row_of_recorded_ones() -> None:
    row = replace(PLANNED, recorded=MOST_RECORDED - 1)
    for last, recorded_so_far in ((Ran(ready=PLAN), 0), (Ran(), MOST_RECORDED - 1), (None, MOST_RECORDED - 1)):
        assert step_begins(row, StepBegins(batch=batch(8), last=last))[0].recorded == recorded_so_far


def test_a_step_measured_above_the_budget_is_planned_anew_by_as_much() -> None:
    ran = Ran(ready=PLAN, peak_bytes=1100, new_bytes=50)
    after, decision = step_begins(PLANNED, StepBegins(batch=batch(8), last=ran))
    assert decision.what == "Replan" and "100 B more than the budget" in decision.reason
    assert after.history.error_bytes == 150 and after.tries == 1  # of what the plan predicts, 900
    assert after.history.ready == () and after.history.current is None
    exhausted = replace(PLANNED, tries=MOST_TRIES)
    assert step_begins(exhausted, StepBegins(batch=batch(8), last=ran))[1].what == "Keep"


@dataclass(frozen=True)
class Drawn:
    """What one step of a loop does."""

    rows: int = 8
    name: object = "x"
    forwards: int = 1
    nodes: int = 1
    backwards: int = 1
    peak_bytes: int = 900
    new_bytes: int = 0
    unfit: bool = False
    fails: bool = False
    waits: bool = False
    in_vain: bool = False
    faulty: bool = False
    unplanned: bool = False
    outgrown: bool = False

    @property
    def kind(self) -> BatchKind:
        return kind(self.rows, self.forwards, self.name)


STEPS = st.builds(
    Drawn,
    rows=st.sampled_from([4, 8, 9, 64]),
    name=st.sampled_from("xyz"),
    forwards=st.sampled_from([1, 1, 1, 2]),
    nodes=st.integers(1, 3),
    backwards=st.sampled_from([0, 1, 1, 1, 2]),
    peak_bytes=st.sampled_from([900, 900, 1100]),
    new_bytes=st.sampled_from([0, 0, 500]),
    **{
        name: st.sampled_from([False] * 7 + [True])
        for name in ("unfit", "fails", "waits", "in_vain", "faulty", "unplanned", "outgrown")
    },
)


class Loop:
    """A training loop without a model: what is decided is done, and what steps do is drawn."""

    def __init__(self) -> None:
        self.state, self.last, self.faults = NEW, cast("Ran | None", None), 0
        self.made, self.wrong = list[Ready](), list[Ready]()  # all plans, and those that steps have proven wrong

    def step(self, drawn: Drawn) -> Decision | None:
        """Take a step; return what was decided, or None once no step is recorded or planned any more."""
        if self.state.given_up:
            return None
        seen = StepBegins(
            batch=drawn.kind.batches[0],
            last=self.last,
            new_bytes=drawn.new_bytes,
            outgrown="AdamW" * drawn.outgrown,
        )
        begun, decision = step_begins(self.state, seen)
        self.refuse_wrong_plan(seen, decision, drawn)
        begun, under = self.planned(begun, decision, seen, drawn)
        if under is not None and not under.covers(drawn.kind.batches, 0):
            begun = step_grows(begun)
        ends = self.ends(decision, under, drawn)
        after, _ = step_ends(begun, ends)
        assert after.number == self.state.number + 1 and after.tries >= self.state.tries
        self.state, self.last = after, ends.ran
        return decision

    def refuse_wrong_plan(self, seen: StepBegins, decision: Decision, drawn: Drawn) -> None:
        """No step runs under a plan that is for another step, that is above its goal, or that was proven wrong."""
        before, last = self.state, seen.last
        above = last is not None and last.ready is not None and (last.peak_bytes or 0) > BUDGET_BYTES
        if before.faults or seen.outgrown or (above and not before.exhausted):
            self.wrong = [*self.made]
        if decision.what not in ("Keep", "Lowest"):
            return
        under = decision.ready
        assert under is not None and under.covers([seen.batch], 0) and before.history.timed
        assert bool(under.unfit) == (decision.what == "Lowest")
        assert not before.unknown and not any(each is under for each in self.wrong)
        if under is before.history.current and not under.unfit and not before.exhausted:
            assert under.plan.peak_bytes + drawn.new_bytes <= BUDGET_BYTES

    def planned(
        self, state: StepState, decision: Decision, seen: StepBegins, drawn: Drawn
    ) -> tuple[StepState, Ready | None]:
        """Make the plan that was decided on, and put it on."""
        under, history = decision.ready, state.history
        if decision.what == "Replan":
            known = history.recording(seen.batch, 0)
            assert known is not None
            under = ready(known.kind, "too large" * drawn.unfit)
            self.made.append(under)
            history = history.planned(under)
        return (state if under is None else replace(state, history=replace(history, current=under))), under

    def ends(self, decision: Decision, under: Ready | None, drawn: Drawn) -> StepEnds:
        """Return what is seen of the step."""
        ran = Ran() if under is None else Ran(ready=under, peak_bytes=drawn.peak_bytes, new_bytes=drawn.new_bytes)
        failure = "it fails" if decision.what == "Record" and drawn.fails else ""
        if decision.what == "Record" and not failure:
            ran = Ran(recorded=recorded())
        if decision.what == "Time":
            ran = Ran(timing=cast(Any, SimpleNamespace(kinds=())) if drawn.in_vain else TIMING)
        self.faults += drawn.faulty
        faults = {f"h.{self.faults}#0": "draws"} if drawn.faulty else {}
        return StepEnds(
            kind=drawn.kind,
            nodes=drawn.nodes,
            backwards=drawn.backwards,
            backward=drawn.backwards > 0,
            ran=ran,
            failure=failure,
            left_waiting=bool(failure) and drawn.waits,
            report=PlanReport(faults=faults, unplanned=drawn.unplanned),
        )


def run(before: Sequence[Drawn]) -> Loop:
    loop = Loop()
    for each in before:
        loop.step(each)
    return loop


@given(st.lists(STEPS, max_size=40))
def test_no_step_of_any_loop_runs_under_a_wrong_plan(steps: list[Drawn]) -> None:
    run(steps)


@given(st.lists(STEPS, max_size=20), STEPS)
def test_what_follows_depends_on_nothing_else(before: list[Drawn], drawn: Drawn) -> None:
    """And nothing is changed in place."""
    loop, again = run(before), run(before)
    loop.step(drawn)
    before_it, twin = again.state, run(before).state
    again.step(drawn)
    assert again.state == loop.state and before_it == twin


@given(st.lists(STEPS, max_size=20), STEPS)
def test_a_loop_that_does_the_same_in_each_step_ends_under_one_plan(before: list[Drawn], drawn: Drawn) -> None:
    loop, calm = run(before), Drawn(rows=drawn.rows, name=drawn.name, forwards=drawn.forwards, nodes=3)
    found = [loop.step(calm) for _ in range(40)][-8:]
    assert found[0] is None or found == [found[0]] * 8
    assert found[0] is None or found[0].what in ("Keep", "Lowest", "Wait")


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=20))
def test_a_loop_each_of_whose_steps_is_of_another_kind_is_not_recorded_for_ever(before: list[Drawn]) -> None:
    loop = run(before)
    found = [loop.step(Drawn(name=("new", number))) for number in range(MOST_RECORDED + 3 * MOST_TRIES)]
    assert {each and each.what for each in found[-2:]} <= {"Wait", None}


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=20), st.lists(STEPS, min_size=1, max_size=3))
def test_a_loop_whose_steps_surprise_again_and_again_is_left_alone(before: list[Drawn], again: list[Drawn]) -> None:
    """It is recorded, and planned for what steps showed, a few times: then its plan stays."""
    loop = run(before)
    loud = [replace(each, nodes=number, faulty=False, outgrown=False, fails=False) for number, each in enumerate(again)]
    found = [loop.step(replace(each, nodes=100 * n + each.nodes)) for n in range(60) for each in loud]
    records = [each for each in found[-10 * len(loud) :] if each is not None and each.what == "Record"]
    assert len(records) <= len(loud)
