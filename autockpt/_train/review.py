"""Looks at a step that begins, and at one that is over: what `machine.py` goes by, and what the user is told of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from .._data.errors import ProfilingError
from .._ranks.refuse import refuse_collectives
from .._record.aside.own_replays import is_unasked, own_replays
from .._record.optimizers.steps import OptimizerSteps
from .._record.written.recorded import Recorded
from .._run.patch.installation import Installation
from .._stash.shard import is_unlike
from .._torch.devices import device_of
from .batches.batch import Batch, Forward, gathered_bytes
from .deciding.machine import step_ends, why_refused
from .deciding.state import Ran, StepBegins, StepEnds, StepState
from .evaluations import Evaluations
from .messages import said
from .messages.account import Account
from .messages.said import WarnOnce
from .messages.spoken import in_unit
from .plans import Plans
from .runners import Measured
from .step import StepUnderWay

_log = logging.getLogger("autockpt")

MOST_NAMED = 3
"""Calls that are named in one warning."""


class StepReview:
    """Looks at the steps of one governor.

    Args:
        plans: makes plans.
        optimizers: the optimizers that have taken steps.
        warn: gives each warning once.
        account: how steps ran, for the report.

    Attributes:
        evaluations: counts the forwards that had no backward.
    """

    def __init__(self, plans: Plans, optimizers: OptimizerSteps, warn: WarnOnce, account: Account) -> None:
        self._plans, self._optimizers, self._warn, self._account = plans, optimizers, warn, account
        self.evaluations = Evaluations()

    def begins(
        self, state: StepState, forward: Forward, batch: Batch, held_bytes: int, last: Ran | None, plan: Installation
    ) -> StepBegins:
        """Return what is seen as a step begins.

        Calls that no replay repeats are noted in the account, with a warning.

        Args:
            state: what is known.
            forward: its first forward.
            batch: the batch of that.
            held_bytes: bytes of the gradients that exist now.
            last: how the step before it ran; None if there is none.
            plan: the plan that is on the model.
        """
        report, new_optimizer = plan.take_report(), self._optimizers.grown()
        planned = last is not None and last.ready is not None
        self._account.begins(planned=planned, device=device_of(forward.device))
        if faults := {**state.faults, **report.faults}:
            self._warn.once(_told_of(faults))
            self._account.refuse(faults)
        if new_optimizer and not self._plans.outgrown(state.history, forward, self._optimizers.optimizers):
            new_optimizer = ""  # the plan counts on what it needs
        return StepBegins(
            batch=batch,
            gradient_bytes=held_bytes,
            last=last,
            report=report,
            new_bytes=_new_bytes(state, forward, held_bytes),
            outgrown=new_optimizer,
        )

    def ends(
        self, state: StepState, step: StepUnderWay, plan: Installation, arguments: object, *, cut: bool
    ) -> tuple[StepState, Ran]:
        """Look at a step that is over.

        Args:
            state: what is known.
            step: the step.
            plan: the plan that is on the model.
            arguments: those of what begins now, see `StepRunner.end`.
            cut: whether what begins now is not the next step's forward.

        Returns:
            What is known then, and how the step ran.

        Raises:
            NotApplicable: its forward runs collectives by itself.
        """
        self.evaluations.over(step)
        self._warn.once(said.AHEAD, where=step.runs_ahead())
        seen = _seen(state, step, plan, arguments, cut=cut)
        self._account.delayed = seen.failure
        after, warnings = step_ends(state, seen)
        if seen.ran.recorded is not None:
            self._tell_of(seen.ran.recorded, state, after, step)
        if seen.ran.timing is not None and seen.ran.timing.kinds and (seconds := after.history.step_seconds):
            _log.info("timed a step: %.3g s without what spilling took", seconds)
        if said.OTHER_CALLS in warnings and step.model is not None and (why := state.history.changed(step.model)):
            warnings = [said.CHANGED.format(why), *(each for each in warnings if each != said.OTHER_CALLS)]
        self._warn.once(*warnings)
        if after.given_up and warnings:
            self._account.unplanned = warnings[-1]
        step.runner.drop()
        return after, seen.ran

    def _tell_of(self, recorded: Recorded, before: StepState, after: StepState, step: StepUnderWay) -> None:
        """Tell of a recorded step, if it was remembered."""
        if after.set_up and not before.set_up:
            _log.info("the model set itself up in its first step, so the next one is recorded")
        if after.recorded == before.recorded:
            return
        if not recorded.runs_collectives:
            refuse_collectives(recorded.operators)
        _log.info("recorded a step on batches of %s%s", step.kind.describe(), recorded.uncounted())
        uncounted_bytes, goal = recorded.uncounted_bytes or 0, after.goal
        if (model := step.model) is not None and (own := own_replays(model, recorded.run.regions)):
            self._warn.once(own, where=is_unasked(own))
        least_bytes = said.MOST_UNCOUNTED * (after.budget_bytes or math.inf)
        self._warn.once(said.UNCOUNTED.format(in_unit(uncounted_bytes, goal)), where=uncounted_bytes > least_bytes)
        self._warn.once(said.UNPLANNED, where=after.history.late)
        self._warn.once(said.ENDLESS, where=after.endless)


def _new_bytes(state: StepState, forward: Forward, gradient_bytes: int) -> int:
    """Return what is allocated and not counted by the plan on the model; 0 if that is not looked at."""
    current, room_bytes, device = state.history.current, state.room_bytes, device_of(forward.device)
    if current is None or room_bytes is None:
        return 0
    held_bytes = gradient_bytes + gathered_bytes(forward.model)
    new_bytes = Measured(device, current, held_bytes).new_bytes
    if new_bytes > room_bytes:
        device.wait()  # autograd's thread may still hold the last gradient of the previous step
        new_bytes = Measured(device, current, held_bytes).new_bytes
    return new_bytes


def _seen(state: StepState, step: StepUnderWay, plan: Installation, arguments: object, *, cut: bool) -> StepEnds:
    """Return what was seen of a step that is over; its runner ends."""
    graphs, runner, ran = step.graphs, step.runner, Ran()
    left_waiting = runner.tapes and step.is_here() and step.backward and graphs.waiting > 0
    failure = why_refused(state, here=step.is_here(), left_waiting=left_waiting) if runner.tapes else ""
    if not failure:
        try:
            ran = runner.end(arguments, cut=cut)
        except ProfilingError as error:
            failure = str(error)
    return StepEnds(
        kind=step.kind,
        nodes=graphs.nodes.made,
        backwards=len(graphs.backwards),
        keeping=len(graphs.keeping),
        backward=step.backward,
        waits=step.waits(),
        differentiable=graphs.differentiable,
        ran=ran,
        made_before=step.made_before,
        failure=failure,
        left_waiting=left_waiting,
        report=plan.take_report(),
    )


def _told_of(faults: Mapping[str, str]) -> str:
    """Say which calls are kept from now on, and why; or that no boundary waits in parts any more."""
    unlike = next((f"{key} {reason}" for key, reason in faults.items() if is_unlike(reason)), "")
    if unlike:
        return f"no boundary waits in parts from now on, and another plan is made: {unlike}"
    named = [f"{key} {reason}" for key, reason in list(faults.items())[:MOST_NAMED]]
    more = f"; and {len(faults) - MOST_NAMED} more, which the plan names" if len(faults) > MOST_NAMED else ""
    return f"calls that no replay repeats are kept from now on, and another plan is made: {'; '.join(named)}{more}"
