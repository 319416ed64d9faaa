"""Starts each step as was decided: makes its runner, and puts its plan on the model.

Record · Time · Wait         ─▶ the step's saved tensors are spilled; but for Wait, the step is watched
Replan ─▶ Keep or Lowest     ─▶ the step runs under the plan, which is first put on the model if it is not there yet;
                                Lowest gives a warning, and its step is not measured
no plan can be put on        ─▶ from now on steps run as they come

This is one process that trains by itself. Where several train one model, `ranks/starter.py` does the same with them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from .._data.errors import NotApplicable
from .._record.optimizers.steps import OptimizerSteps
from .._run.frames.table import Handle
from .._run.patch.installation import Installation
from .._torch.devices import device_of
from ..solvers.errors import AutockptError, Infeasible, TooCostly
from .batches.batch import Forward, gathered_bytes
from .deciding.known import MOST_KINDS, Ready
from .deciding.machine import Decision
from .deciding.state import StepBegins, StepState
from .messages import said
from .messages.account import Account
from .messages.said import WarnOnce
from .messages.spoken import in_unit
from .plans import PlanOrder, Plans
from .runners import Measured, Runners
from .step import StepRunner

_log = logging.getLogger("autockpt")

UNPLANNED = ("Record", "Time", "Wait")
"""What is decided of steps that run without a plan."""

GIVEN = "a batch was given"
"""Why a plan was made before any step."""


class Started(NamedTuple):
    """A step that was started: the state then, the decision with the plan if one was made, and the step's runner."""

    state: StepState
    decision: Decision
    runner: StepRunner

    def drop(self) -> None:
        """Release what the runner holds."""
        self.runner.drop()


class StepStarter:
    """Starts the steps of one model.

    Args:
        runners: makes runners.
        plans: makes plans.
        optimizers: the optimizers that have taken steps.
        warn: gives each warning once.
        account: how steps ran, for the report.

    Attributes:
        installed: the plan that is on the model.
        idle: whether steps run as they come from now on: none is recorded or planned. An installed plan stays.
    """

    installed: Installation

    def __init__(
        self, runners: Runners, plans: Plans, optimizers: OptimizerSteps, warn: WarnOnce, account: Account
    ) -> None:
        self.plans, self.runners, self.warn, self.idle = plans, runners, warn, False
        self._optimizers, self._account = optimizers, account

    def prepare(self, state: StepState, model: nn.Module, inputs: object) -> tuple[StepState, Ready]:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        return self.make_plan(state, self.plans.wanted_for(model, inputs), GIVEN)

    def start(self, state: StepState, decision: Decision, seen: StepBegins, begins: Forward) -> Started:
        """Start the step that begins.

        Args:
            state: what is known.
            decision: how the step runs.
            seen: what is seen of it.
            begins: its first forward.

        Raises:
            Infeasible, TooCostly: no plan keeps to what was asked for, and this is the first plan, or `strict` is set;
                the plan on the model is taken off.
            NotApplicable: no step of this model can be recorded here, now or later.
            NoRoom: there is no room for the saved tensors that are to wait off the device.
        """
        if decision.what in UNPLANNED:
            return Started(state, decision, self.unplanned(state, decision, seen, begins))
        if decision.what == "Replan":
            state, ready = self.replan(state, decision.reason, seen, begins)
            decision = replace(decision, ready=ready)
        return self.under_plan(state, decision, seen, begins)

    def unplanned(self, state: StepState, decision: Decision, seen: StepBegins, begins: Forward) -> StepRunner:
        """Make a runner without a plan."""
        if decision.what == "Record":
            changed = state.history.changed(begins.model)
            return self.runners.recorded(begins, is_first=seen.last is None, changed=changed)
        return (self.runners.timed if decision.what == "Time" else self.runners.spilled)(begins)

    def replan(self, state: StepState, reason: str, seen: StepBegins, begins: Forward) -> tuple[StepState, Ready]:
        """Make a plan for the step that begins; if there is none, give up."""
        began, optimizers = time.perf_counter(), self._optimizers.optimizers
        try:
            wanted = self.plans.wanted(state.history, begins, seen.gradient_bytes, optimizers)
            state, ready = self.make_plan(state, wanted, reason)
        except (Infeasible, TooCostly) as error:
            self.give_up(begins.model)
            # The message then says that the model is as it was. That is true of a first plan as of a later one.
            raise error.carrying(model_untouched=True) from None
        except AutockptError:
            self.give_up(begins.model)
            raise
        _log.info(
            "planned in %.1f s (%s), for batches of %s: peak %s, plain %s, recompute overhead %.1f %%, all predicted",
            time.perf_counter() - began,
            reason,
            ready.kind.describe(),
            in_unit(ready.plan.peak_bytes, state.goal),
            in_unit(ready.plan.plain_peak_bytes, state.goal),
            100 * (ready.plan.recompute_overhead or 0.0),
        )
        return state, ready

    def make_plan(self, state: StepState, wanted: PlanOrder, reason: str) -> tuple[StepState, Ready]:
        """Make the plan that is wanted, and remember it."""
        ready = self.chosen(wanted)
        self._account.planned(ready.plan, reason)
        return replace(state, history=self.plans.history_with(ready, wanted)), ready

    def chosen(self, wanted: PlanOrder) -> Ready:
        """Choose the plan that is wanted."""
        return self.plans.for_kinds_alike(self.plans.made(wanted), wanted)

    def under_plan(self, state: StepState, decision: Decision, seen: StepBegins, begins: Forward) -> Started:
        """Start a step under the plan that was decided on."""
        ready = decision.ready
        assert ready is not None
        plan = ready.plan
        price = f"{plan.recompute_overhead:.0%} slower" if plan.plain_seconds else "how much slower is not known"
        self.warn.once(said.LOWEST.format(price, ready.unfit), where=bool(ready.unfit))
        stays = state.history.current is ready and self.installed.plan is ready.plan
        was_on_before = stays or any(each is ready for each in state.put_on)
        if not stays:
            state = self._put_on(state, ready, begins.model)
        measured = None
        # The first step under a plan is its rehearsal, which also spills. The lowest plan exceeds the budget anyway.
        if was_on_before and not ready.unfit:
            held_bytes = seen.gradient_bytes + gathered_bytes(begins.model)
            measured = Measured(device_of(begins.device), ready, held_bytes)
        # If `ready` could not be put on, `current` is another plan, or None.
        runner = self.runners.planned(self.installed, state.history.current, measured)
        return Started(state, Decision.under(ready) if ready.unfit else decision, runner)

    def _put_on(self, state: StepState, ready: Ready, model: nn.Module) -> StepState:
        """Put a plan on the model."""
        try:
            self.installed.replace(model, ready.plan, ready.checks, ready.calls, self.early_segments(model, ready))
        except NotApplicable as error:
            self.cannot_put_on(state, ready, model, error)
            return state
        put_on = (*(each for each in state.put_on if each is not ready), ready)[-MOST_KINDS:]
        return replace(state, history=replace(state.history, current=ready), put_on=put_on)

    def cannot_put_on(self, state: StepState, ready: Ready, model: nn.Module, error: NotApplicable) -> None:
        """Let steps run as they come from now on, since a plan cannot be put on the model, and say so."""
        self.stop(model, f"the model trains without a plan of its own, and the budget may not hold: {error}")

    def stop(self, model: nn.Module, why: str) -> None:
        """Make no plan from now on, and say why."""
        self.rest()
        self.warn.once(why)
        self._account.unplanned = why

    def rest(self) -> None:
        """Let steps run as they come from now on."""
        self.idle = True
        self.runners.stashes.let_go()

    def give_up(self, model: nn.Module) -> None:
        """Take the plan off the model, and plan no more."""
        self.rest()
        self.take_off(model)

    def take_off(self, model: nn.Module) -> None:
        """Take the plan off the model."""
        try:
            self.installed.remove(model)
        except NotApplicable:  # somebody has patched a forward over ours
            self.installed.empty()

    def failed(self, model: nn.Module, error: BaseException) -> None:
        """Note that a step could not begin."""
        self.runners.stashes.let_go()

    def close(self) -> None:
        """Plan no more: the budget is taken off the model."""
        self.runners.put_back()

    @property
    def lasts_until_optimizer(self) -> bool:
        """Whether a step goes on until an optimizer steps."""
        return False

    def is_step(self, model: nn.Module, root: nn.Module) -> bool:
        """Whether a forward of `root`, which is the model or one of several, belongs to a step."""
        return True

    def early_segments(self, model: nn.Module, ready: Ready) -> frozenset[int]:
        """Return the segments of a plan whose replays may run before their backward begins."""
        return frozenset()

    def listen(self, handle: Handle) -> None:
        """Listen to what the patched forwards of the model tell; the plan is theirs from now on."""
        self.installed = Installation(handle)

    def stepped(self, model: nn.Module) -> None:
        """Note that an optimizer has taken a step in the step under way."""

    def end_early_replays(self) -> None:
        """Forget the segments that may be replayed early: the step under way is over, or its optimizer has stepped."""
