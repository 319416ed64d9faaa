"""What follows from what is seen: pure functions from a state to the next one.

as a step begins
    a plan covers the step                                            Keep
    a step of its kind is recorded, but none is timed yet             Time, whatever the sizes
    no recording covers the step, or the last one made other calls    Record; or Wait if each step is of another kind
    recorded and timed, or measured above the budget                  Replan
    planned, but no plan keeps to the budget                          Lowest

as a step ends
    recorded                                     its kind is known; plans are dropped if it is what was looked for
    other calls, or more backwards, than before  the next step is recorded
    its recording failed                         a later step is recorded; after `MOST_TRIES` none is

After `MOST_TRIES` surprises the plan stays, so that no loop is recorded for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..batches.batch import Kind
from ..messages import said
from ..messages.spoken import in_unit
from .known import Known, Ready
from .state import MOST_RECORDED, MOST_TRIES, MOST_WAITS, StepBegins, StepEnds, StepState

MOST_KINDS = 100
"""Kinds of steps whose numbers of autograd nodes are remembered."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a step runs.

    Attributes:
        what: ``Keep`` the plan that covers the step; ``Record`` or ``Time`` the step, with saved tensors spilled;
            ``Replan`` before it runs; run it under the ``Lowest`` plan, which exceeds the budget, with a warning; or
            ``Wait``, with saved tensors spilled, for a step of a known kind.
        reason: why, for a message; empty if there is nothing to say.
        ready: the plan, if there is one.
    """

    what: Literal["Keep", "Record", "Time", "Replan", "Lowest", "Wait"]
    reason: str = ""
    ready: Ready | None = None

    @classmethod
    def under(cls, ready: Ready) -> Decision:
        """Run the step under a plan that covers it."""
        return cls("Lowest", ready.unfit, ready) if ready.unfit else cls("Keep", "", ready)


def step_begins(state: StepState, seen: StepBegins) -> tuple[StepState, Decision]:
    """Decide how the step that begins runs.

    Some steps make more forwards or backwards than any plan covers. Their first forward does not show this. If they
    come at a fixed interval, the next one is the step number `state.due`. That step is recorded from its beginning.
    """
    last, number = seen.last, state.number + 1
    due = number == state.due and not state.exhausted
    state = replace(
        state,
        history=state.history.following(seen.batch, seen.gradient_bytes, last.made if last is not None else ()),
        number=number,
        recorded=0 if last is not None and last.ready is not None else state.recorded,
        unknown=state.unknown or due,
        uncovered=state.uncovered or due,
        unplanned=state.unplanned or seen.report.unplanned,
    )
    state, surprise = _surprised(state, seen)
    return state, _decision(state, seen, surprise)


def _decision(state: StepState, seen: StepBegins, surprise: str) -> Decision:
    """Decide by the table; `surprise` is why the plan is to be made anew, empty if it is not."""
    history, batch, gradient_bytes = state.history, seen.batch, seen.gradient_bytes
    if not (state.unknown or history.timed) and history.has_met([batch], gradient_bytes):
        return Decision("Time")
    ready = history.plan_for(batch, gradient_bytes)
    if state.unknown or (ready is None and history.recording(batch, gradient_bytes) is None):
        return Decision("Wait" if state.endless and not state.unknown else "Record")
    if surprise or ready is None:
        return Decision("Replan", surprise or "a step of its kind was recorded")
    return Decision.under(ready)


def _surprised(state: StepState, seen: StepBegins) -> tuple[StepState, str]:
    """Return what the last step, or the one that begins, does that no plan counts on; empty if nothing."""
    if faults := {**state.faults, **seen.report.faults}:
        return replace(state, history=state.history.refusing(faults), faults={}), "some calls cannot be replayed"
    last = seen.last
    if last is not None and last.ready is not None and last.peak_bytes is not None and not state.exhausted:
        above_bytes = last.peak_bytes - (state.budget_bytes or math.inf)
        if above_bytes > 0:  # later predictions add the error of this one
            # New allocations outside the step are no error of the plan: the next plan measures them anyway.
            error_bytes = max(last.peak_bytes - last.new_bytes - last.ready.plan.peak_bytes, 0)
            state = replace(state, history=state.history.counting(error_bytes), tries=state.tries + 1)
            return state, f"a step measured {in_unit(int(above_bytes), state.goal)} more than the budget"
    room_bytes = state.room_bytes
    if room_bytes is not None and seen.new_bytes > room_bytes:
        lacking = in_unit(seen.new_bytes - room_bytes, state.goal)
        state = replace(state.without_plans(), tries=state.tries + 1)
        return state, f"the step would take {lacking} more than the budget, with what is new on the device"
    if seen.outgrown:
        history = replace(state.history, all_reached=state.history.stepped).without_plans()
        return replace(state, history=history), f"{seen.outgrown} keeps more than the plan counts on"
    return state, ""


def step_grows(state: StepState) -> StepState:
    """Note that the step under way makes more forwards than plans cover, or others."""
    if state.number == state.uncovered_at:
        return state
    found = not state.exhausted and not state.uncovered_at
    return _comes_again(replace(state, unknown=found, uncovered=found))


def step_ends(state: StepState, seen: StepEnds) -> tuple[StepState, list[str]]:
    """Learn of a step that is over; return the state with what was learnt, and the warnings that follow.

    If a step was looked for that no plan covers, and this step is recorded and is of that kind, all plans are dropped.
    """
    if seen.report.faults:  # calls that replays could not reproduce: the next plan leaves them alone
        state = replace(state, faults={**state.faults, **seen.report.faults})
    warnings: list[str] = []
    for rule in (_compared, _recorded, _timed, _counted):
        state, warning = rule(state, seen)
        warnings += [warning] if warning else []
    return state, warnings


def why_refused(state: StepState, *, here: bool, left_waiting: bool) -> str:
    """Return why a watched step that is over is unlike the steps to come; empty if it is like them.

    Args:
        state: the state in which it ends.
        here: whether the next step runs in the same thread.
        left_waiting: whether one of its forwards had no backward. An exception may have come between the two. Then what
            is held of that forward is not part of a step.
    """
    if not here:
        return "the next step runs in another thread"
    if left_waiting and state.waited < MOST_WAITS:
        return "a forward of the step had no backward, while its outputs were still held"
    return ""


def _compared(state: StepState, seen: StepEnds) -> tuple[StepState, str]:
    """Compare a step's calls with those of earlier steps of its kind.

    If there are more nodes of autograd, or unknown calls, the next step is recorded.
    """
    unplanned = state.unplanned or seen.report.unplanned
    if not seen.backward:  # an evaluation says nothing of training
        return (replace(state, unplanned=False) if unplanned else state), ""
    nodes: Mapping[Kind, int] = state.nodes if len(state.nodes) <= MOST_KINDS else {}  # too many: begin anew
    known = nodes.get(seen.kind)
    before = seen.nodes if known is None else known
    differs = (seen.nodes > before or unplanned) and not state.exhausted
    if differs or known is None:
        nodes = {**nodes, seen.kind: max(seen.nodes, before)}
    if differs or unplanned or nodes is not state.nodes:
        state = replace(state, nodes=nodes, unplanned=False)
    return (state.trying(), said.OTHER_CALLS) if differs else (state, "")


def _recorded(state: StepState, seen: StepEnds) -> tuple[StepState, str]:
    """Remember what was recorded of a step, unless it failed, or the next one is to be recorded in its place."""
    if seen.left_waiting:
        state = replace(state, waited=state.waited + 1)
    if seen.failure:
        return _failed(state, seen)
    recorded = seen.ran.recorded
    if recorded is None:
        return state, ""
    if seen.ran.foreign:  # the user's own hooks replaced saved tensors
        return replace(state, given_up=True), said.HOOKS
    if recorded.run.sets_itself_up and not state.set_up:  # later steps find the attributes that it has set
        return replace(state, set_up=True), ""
    history = state.history.learning(Known.of(seen.kind, seen.nodes, recorded, seen.made_before, seen.keeping))
    return _learnt(replace(state, history=history), new=history is not state.history), ""


def _failed(state: StepState, seen: StepEnds) -> tuple[StepState, str]:
    """Note that nothing could be learnt of a step. Without a graph, as in `maker(x).detach()`, there was nothing to."""
    if not seen.differentiable:
        return state, ""
    tries = state.tries + (seen.backward or seen.waits)
    given_up = tries >= MOST_TRIES
    state = replace(state, tries=tries, given_up=state.given_up or given_up)
    return state, f"{said.FAILED if given_up else said.LATER}: {seen.failure}"


def _learnt(state: StepState, *, new: bool) -> StepState:
    """Note that a step was recorded, and whether it was `new`. If it is the one that was looked for, plans are dropped.

    If it is not, a later one may be: steps with one forward and with several may take turns.
    """
    recorded, missed = state.recorded + 1, state.uncovered and not new
    tries = state.tries + missed
    uncovered = missed and tries < MOST_TRIES - 1  # after that, only when it is due
    found = state.unknown and new
    state = replace(
        state,
        recorded=recorded,
        endless=state.endless or recorded >= MOST_RECORDED,
        tries=tries,
        unknown=uncovered,
        uncovered=uncovered,
        due=0 if new else state.due,
        uncovered_at=0 if new else state.uncovered_at,
    )
    return state.without_plans() if found else state


def _timed(state: StepState, seen: StepEnds) -> tuple[StepState, str]:
    """Take the seconds of a timed step. If several in a row had none, those that its recording measured count."""
    timing = seen.ran.timing
    if timing is None or not seen.backward:
        return state, ""
    history, untimed = state.history.timed_by(seen.kind, timing), state.untimed + 1
    if untimed >= MOST_TRIES and not history.timed:
        history = replace(history, slower=1.0)
    state = replace(state, history=history, untimed=untimed)
    if not history.has_met(seen.kind.batches, seen.kind.gradient_bytes):
        state = step_grows(state)
    return state, ""


def _counted(state: StepState, seen: StepEnds) -> tuple[StepState, str]:
    """Compare a step's backward passes with those that its plan counts on."""
    ready = seen.ran.ready
    if ready is None or state.exhausted or not ready.covers(seen.kind.batches, seen.kind.gradient_bytes):
        return state, ""
    if seen.backwards <= ready.backwards and seen.keeping <= ready.keeping:
        return state, ""
    return _comes_again(state.trying()), said.BACKWARDS


def _comes_again(state: StepState) -> StepState:
    """Expect such a step again after as many steps as there were since the last one."""
    return replace(state, due=2 * state.number - state.uncovered_at, uncovered_at=state.number)
