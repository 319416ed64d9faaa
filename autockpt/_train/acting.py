"""Carries out a decision: makes the way in which the step that begins will run.

Record · Time                ─▶ the step's saved tensors are spilled, and the step is watched
Replan ─▶ Keep or Lowest     ─▶ the step runs under the plan, which is first put on the model if it is not there yet;
                                Lowest gives a warning, and its step is not measured
no plan can be put on        ─▶ from now on steps run as they come
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

from torch import nn

from .._batches.batch import Forward, gathered_bytes
from .._choose.early import find_early
from .._data.errors import NotApplicable
from .._device import device_of
from .._optimizer.steps import OptimizerSteps
from .._ranks import Parted
from .._ranks.errors import Left
from .._ranks.fsdp import units
from .._ranks.pipeline import Pipeline
from .._tell import said
from .._tell.said import Said
from ..solvers.errors import AutockptError, Infeasible, TooCostly
from .agreement import Agreement, Next
from .decision import Decision
from .history import MOST_KINDS
from .known import Ready
from .planned import Measured
from .plans import Plans
from .way import Installed, Way
from .ways import Ways


@dataclasses.dataclass(frozen=True, slots=True)
class Beginning:
    """A step that begins.

    Attributes:
        forward: its first forward.
        installed: the plan that is on the model.
        gradient_bytes: bytes of the gradients that exist.
        end: a method that ends its recording when somebody else starts to record.
        is_first: whether it is the first step of its loop.
    """

    forward: Forward
    installed: Installed
    gradient_bytes: int
    end: Callable[[], None]
    is_first: bool


class Acting:
    """Carries out the decisions on the steps of one model.

    Args:
        plans: makes plans.
        ways: makes the ways in which steps run.
        optimizers: the optimizers that have taken steps.
        said: gives each warning once.
        agreement: the agreement with other ranks.

    Attributes:
        idle: whether steps run as they come from now on: none is recorded or planned. An installed plan stays.
        pipeline: the pipeline, if the model is a stage of one.
    """

    def __init__(self, plans: Plans, ways: Ways, optimizers: OptimizerSteps, said: Said, agreement: Agreement) -> None:
        self._plans, self._ways, self._optimizers, self._said = plans, ways, optimizers, said
        self._agreement, self.idle = agreement, False
        self.pipeline = Pipeline()
        self._put: list[Ready] = []  # plans that were put on the model, newest last: kinds of steps may take turns

    def rest(self) -> None:
        """Let steps run as they come from now on."""
        self.idle = True
        self._ways.stashes.let_go()
        self._agreement.leave("trains without a plan")

    def failed(self, model: nn.Module, installed: Installed, error: BaseException) -> None:
        """Tell the other ranks that a step could not begin here. If replays speak, all ranks take their plans off."""
        self._ways.stashes.let_go()
        self._agreement.leave("has failed as a step began", error)
        if self._agreement.speaks and self._agreement.several and not self.idle:
            self._give_up(model, installed)

    def stepped(self, model: nn.Module, installed: Installed) -> None:
        """Note that an optimizer has taken a step. If one rank of a pipeline has failed, all raise its error here."""
        try:
            self.pipeline.stepped()
        except AutockptError:
            self._give_up(model, installed)
            raise

    def on(self, decision: Decision, begins: Beginning) -> tuple[Decision, Way]:
        """Carry out the decision on the step that begins.

        Returns:
            The decision, with the new plan if one was made, and the way in which the step runs.

        Raises:
            Infeasible, TooCostly: as for `Plans.make`; the plan is taken off the model.
            NotApplicable, NoRoom: as for `Ways`.
            AutockptError: as for `Agreement`; the plan is taken off the model.

        The step of a stage of a pipeline runs spilled instead, as long as other stages wait for it.
        """
        self.pipeline.begins()
        try:
            return self._on(decision, begins)
        except AutockptError as error:
            if not self.pipeline.fails(error):
                raise
            return dataclasses.replace(decision, what="Wait"), self._ways.spilled(begins.forward)

    def _on(self, decision: Decision, begins: Beginning) -> tuple[Decision, Way]:
        """Carry out the decision; errors of a stage of a pipeline are raised here too."""
        follows = self._follows(decision, begins)
        if follows == "rest":
            return decision, self._ways.planned(begins.installed, None, None)
        if follows == "plan" and decision.ready is not None:  # this rank has a plan, another rank needs a new one
            decision = Decision("Replan", "another rank plans")
        if follows == "plan" and decision.what != "Replan":  # all ranks make their first plan; this step has none yet
            self._made(begins, "the other ranks plan")
        if follows == "wait":
            decision = dataclasses.replace(decision, what="Wait")
        if decision.what in ("Record", "Time", "Wait"):
            return decision, self._unplanned(decision, begins)
        if replans := decision.what == "Replan":
            ready = self._made(begins, decision.reason)
            decision = Decision.under(ready) if ready.unfit else dataclasses.replace(decision, ready=ready)
        planned = functools.partial(self._planned, decision, begins)
        # Another rank may fail to begin its step. Where replays speak, a new plan is on all ranks, or on none.
        if not (self._agreement.waits and (replans or not self._agreement.speaks)):
            return decision, planned()
        try:
            return decision, self._agreement.together(planned)
        except Left as left:
            self._stop(begins, str(left))
            return decision, self._ways.planned(begins.installed, None, None)

    def _stop(self, begins: Beginning, why: str) -> None:
        """Make no plan from now on, and say why. If replays speak, none is left on: they would wait for other ranks."""
        self.rest()
        if self._agreement.speaks:
            self._take_off(begins.forward.model, begins.installed)
        self._said.once(why)

    def _follows(self, decision: Decision, begins: Beginning) -> Next | Literal["rest"]:
        """Agree with the other ranks on what to do; "rest" if a rank has left, so that there is no plan from now on."""
        history, model = self._plans.history, begins.forward.model
        under = decision.ready.plan if decision.ready is not None else None
        early = history.timed and history.current is None and not self._agreement.speaks
        able = decision.what == "Replan" or early or under is not None
        failed, self._ways.no_room = self._ways.no_room, None
        try:
            follows = self._agreement.begins(model, able=able, under=under, refused=history.refused, failed=failed)
        except Left as left:
            self._stop(begins, str(left))
            return "rest"
        except Parted as parted:
            self._said.once(str(parted))
            return "go on"
        except AutockptError:
            self._give_up(model, begins.installed)
            raise
        if follows == "plan" and self._agreement.speaks and self._agreement.refused != history.refused:
            self._plans.history = history.refusing(self._agreement.refused)
        return follows

    def _unplanned(self, decision: Decision, begins: Beginning) -> Way:
        """Make a way without a plan. While the ranks wait for each other, an error of one is raised on all."""

        def way() -> Way:
            if decision.what == "Record":
                changed = self._plans.history.changed(begins.forward.model)
                return self._ways.recorded(begins.forward, begins.end, is_first=begins.is_first, changed=changed)
            return (self._ways.timed if decision.what == "Time" else self._ways.spilled)(begins.forward)

        self._ways.goes_on = self._agreement.waits
        try:
            return self._agreement.together(way)
        except AutockptError:
            if self._ways.goes_on:  # the other ranks raise it too
                self._give_up(begins.forward.model, begins.installed)
            raise

    def _made(self, begins: Beginning, reason: str) -> Ready:
        """Make a plan for the step that begins. If there is none, give up."""
        try:
            return self._plans.make(begins.forward, begins.gradient_bytes, self._optimizers.optimizers, reason)
        except (Infeasible, TooCostly) as error:
            self._give_up(begins.forward.model, begins.installed)
            raise error.carrying(kept=True) from None
        except AutockptError:
            self._give_up(begins.forward.model, begins.installed)
            raise

    def _give_up(self, model: nn.Module, installed: Installed) -> None:
        """Take the plan off the model, and plan no more. Ranks of a pipeline wait until all can do so together."""
        if self.pipeline.waits:
            return
        self.rest()
        self._take_off(model, installed)

    def _take_off(self, model: nn.Module, installed: Installed) -> None:
        try:
            installed.remove(model)
        except NotApplicable:  # somebody has patched a forward over ours
            installed.empty()

    def _planned(self, decision: Decision, begins: Beginning) -> Way:
        """Make a way under the plan that was decided on."""
        ready, lowest, forward, installed = decision.ready, decision.what == "Lowest", begins.forward, begins.installed
        assert ready is not None
        self.pipeline.planned()
        plan = ready.plan
        price = f"{plan.recompute_overhead:.0%} slower" if plan.plain_seconds else "how much slower is not known"
        self._said.once(said.LOWEST.format(price, decision.reason), where=lowest)
        stays = self._plans.history.current is ready and installed.plan is ready.plan
        rehearsed = stays or any(each is ready for each in self._put)
        if not stays:
            self._put_on(begins, ready)
        measured = None
        if rehearsed and not lowest:  # the lowest plan is known to exceed the budget
            held_bytes = begins.gradient_bytes + gathered_bytes(forward.model)
            measured = Measured(device_of(forward.device), ready, held_bytes)
        return self._ways.planned(installed, self._plans.history.current, measured)

    def _early(self, model: nn.Module, ready: Ready) -> frozenset[int]:
        """Return the segments whose replays may run while a stage of a pipeline waits for a gradient.

        None may if a replay runs collectives, or finds its parameters gathered only once backward has begun.
        """
        if not self.pipeline.there or self._agreement.speaks or units(model) or ready.others:
            return frozenset()
        return find_early(ready.profile, ready.plan)

    def _put_on(self, begins: Beginning, ready: Ready) -> None:
        """Put a plan on the model. If that fails, steps run as they come from now on.

        Raises:
            NotApplicable: the plan was on before, and replays speak. By now other ranks run their steps under it.
        """
        try:
            model = begins.forward.model
            begins.installed.replace(model, ready.plan, ready.checks, ready.calls, self._early(model, ready))
        except NotApplicable as error:
            if self._agreement.speaks and self._agreement.several and any(each is ready for each in self._put):
                raise
            self._stop(begins, f"the model trains without a plan of its own, and the budget may not hold: {error}")
        else:
            self._plans.history = dataclasses.replace(self._plans.history, current=ready)
            self._put = [*(each for each in self._put if each is not ready), ready][-MOST_KINDS:]
