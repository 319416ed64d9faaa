"""Starts each step as several ranks agreed, or as a stage of a pipeline.

other ranks       all plan, wait or go on together until each has a first plan; if replays run collectives, in each step
a pipeline        nobody can wait as a step begins: a step that fails runs spilled, and its optimizer raises the error
"""

from __future__ import annotations

import functools
from dataclasses import replace

from torch import nn

from ..._calls.roots import roots
from ..._choose.early import find_early
from ..._data.errors import NotApplicable
from ..._ranks import Parted
from ..._ranks.errors import StoppedPlanning
from ..._ranks.fsdp import units
from ..._ranks.pipeline import Pipeline
from ..._record.optimizers.steps import OptimizerSteps
from ..._run.frames.table import Handle
from ..._stash.base import NoRoom
from ...solvers.errors import AutockptError
from ..batches.batch import Forward
from ..deciding.known import Ready
from ..deciding.machine import Decision
from ..deciding.state import StepBegins, StepState
from ..messages.account import Account
from ..messages.said import WarnOnce
from ..plans import PlanOrder, Plans
from ..runners import Runners
from ..starter import GIVEN, Started, StepStarter
from ..step import StepRunner
from .agreement import Agreement
from .early import EarlyReplays


class RanksStarter(StepStarter):
    """Starts the steps of one model with the other ranks that train it, if there are any; see `StepStarter`."""

    def __init__(
        self, runners: Runners, plans: Plans, optimizers: OptimizerSteps, warn: WarnOnce, account: Account
    ) -> None:
        super().__init__(runners, plans, optimizers, warn, account)
        self._agreement, self._pipeline = Agreement(plans.request), Pipeline()
        self._early = EarlyReplays(self._pipeline)
        self._no_room: NoRoom | None = None  # the first error of a step that went on, since other ranks waited for it

    def prepare(self, state: StepState, model: nn.Module, inputs: object) -> tuple[StepState, Ready]:
        agreement = self._agreement
        try:
            agreement.opens(model, given=True)
            try:
                wanted = self.plans.wanted_for(model, inputs)
            except Exception as error:  # whatever it is, the other ranks must not wait for this one
                agreement.begins(model, able=False, failed=error, meanwhile="ran a step on the given batch")
                raise
            agreement.begins(model, able=True)
            return self.make_plan(state, wanted, GIVEN)
        except BaseException as error:
            agreement.leave("has failed before its first step", error)
            raise

    def start(self, state: StepState, decision: Decision, seen: StepBegins, begins: Forward) -> Started:
        """Start the step that begins; errors as for `StepStarter` and `Agreement`, which take the plan off the model.

        The step of a stage of a pipeline runs spilled instead, as long as other stages wait for it.
        """
        self._pipeline.begins()
        try:
            if self._agreement.meets(begins.model):
                state, decision = self._agreed(state, decision, seen, begins)
            return self._as_it_comes(state, decision) if self.idle else super().start(state, decision, seen, begins)
        except AutockptError as error:
            if not self._pipeline.fails(error):
                raise
            return Started(state, replace(decision, what="Wait"), self.runners.spilled(begins))

    def _agreed(
        self, state: StepState, decision: Decision, seen: StepBegins, begins: Forward
    ) -> tuple[StepState, Decision]:
        """Agree with the other ranks on what to do. If a rank has stopped planning, there is no plan from now on."""
        history, agreement, follows = state.history, self._agreement, "go on"
        under = decision.ready.plan if decision.ready is not None else None
        early = history.timed and history.current is None and not agreement.runs_collectives
        able = decision.what == "Replan" or early or under is not None
        failed, self._no_room = self._no_room, None
        try:
            follows = agreement.begins(begins.model, able=able, under=under, refused=history.refused, failed=failed)
        except StoppedPlanning as stopped:
            self.stop(begins.model, str(stopped))
        except Parted as parted:
            self.warn.once(str(parted))
        except AutockptError:
            self.give_up(begins.model)
            raise
        if follows == "wait":
            return state, replace(decision, what="Wait")
        if follows == "plan" and agreement.runs_collectives and agreement.refused != history.refused:
            state = replace(state, history=history.refusing(agreement.refused))
        if follows == "plan" and under is not None:  # this rank has a plan, another rank needs a new one
            return state, Decision("Replan", "another rank plans")
        if follows == "plan" and decision.what != "Replan":  # all make their first plan; this step has none yet
            state, _ = self.replan(state, "the other ranks plan", seen, begins)
        return state, decision

    def _as_it_comes(self, state: StepState, decision: Decision) -> Started:
        """Start a step under whatever is on the model, since no plan is made from now on."""
        return Started(state, decision, self.runners.planned(self.installed, None, None))

    def unplanned(self, state: StepState, decision: Decision, seen: StepBegins, begins: Forward) -> StepRunner:
        """Make a runner without a plan. While the ranks wait for each other, an error of one is raised on all."""
        waits = self._agreement.waits
        self.runners.tell_no_room = self._without_room if waits else None
        try:
            return self._agreement.together(functools.partial(super().unplanned, state, decision, seen, begins))
        except AutockptError:
            if waits:
                self.give_up(begins.model)
            raise

    def _without_room(self, error: NoRoom) -> None:
        self._no_room = self._no_room or error

    def under_plan(self, state: StepState, decision: Decision, seen: StepBegins, begins: Forward) -> Started:
        """Start a step under the plan that was decided on.

        Another rank may fail to begin its step. If replays run collectives, a new plan is on all ranks, or on none.
        """
        self._pipeline.planned()
        start = functools.partial(super().under_plan, state, decision, seen, begins)
        if self._agreement.runs_collectives and decision.what != "Replan":
            return start()
        try:
            return self._agreement.together(start)
        except StoppedPlanning as stopped:
            self.stop(begins.model, str(stopped))
            return self._as_it_comes(state, decision)

    def chosen(self, wanted: PlanOrder) -> Ready:
        """Choose the plan that is wanted, up to the first one with all ranks, which may take it from one another."""
        plans, agreement, begins = self.plans, self._agreement, wanted.begins
        profile, offload = agreement.sharing(begins.model, wanted.profile, plans.request.offload, begins.device)
        plans.request = replace(plans.request, offload=offload)
        wanted = replace(wanted, profile=profile)
        ready = agreement.plan(
            profile.plain_peak_bytes,
            lambda: plans.made(wanted, gathers=agreement.runs_collectives),
            lambda plan, unfit: plans.adopted(wanted, plan, unfit, gathers=agreement.runs_collectives),
        )
        # If replays run collectives, all ranks have one plan, for this kind.
        return ready if agreement.runs_collectives else plans.for_kinds_alike(ready, wanted)

    def cannot_put_on(self, state: StepState, ready: Ready, model: nn.Module, error: NotApplicable) -> None:
        """See `StepStarter`. If the plan was on before, and replays run collectives, the error is raised.

        By now other ranks run their steps under it.
        """
        agreement = self._agreement
        if agreement.runs_collectives and agreement.several and any(each is ready for each in state.put_on):
            raise error
        super().cannot_put_on(state, ready, model, error)

    def stop(self, model: nn.Module, why: str) -> None:
        """See `StepStarter`. If replays run collectives, no plan is left on: it would wait for other ranks."""
        super().stop(model, why)
        if self._agreement.runs_collectives:
            self.take_off(model)

    def rest(self) -> None:
        super().rest()
        self._agreement.leave("trains without a plan")

    def give_up(self, model: nn.Module) -> None:
        """See `StepStarter`. Ranks of a pipeline wait until all can give up together."""
        if not self._pipeline.waits:
            super().give_up(model)

    def failed(self, model: nn.Module, error: BaseException) -> None:
        """Tell the other ranks that no step could begin here. If replays run collectives, all take their plans off."""
        super().failed(model, error)
        self._agreement.leave("has failed as a step began", error)
        if self._agreement.runs_collectives and self._agreement.several and not self.idle:
            self.give_up(model)

    def close(self) -> None:
        self._agreement.leave("has had the budget taken off its model")
        super().close()

    @property
    def lasts_until_optimizer(self) -> bool:
        return self._pipeline.there

    def is_step(self, model: nn.Module, root: nn.Module) -> bool:
        return not self._pipeline.asks_for_shapes(roots(model).values(), root)

    def early_segments(self, model: nn.Module, ready: Ready) -> frozenset[int]:
        """Return the segments whose replays may run while a stage of a pipeline waits for a gradient.

        None may if a replay runs collectives, or finds its parameters gathered only once backward has begun.
        """
        if not self.lasts_until_optimizer or self._agreement.runs_collectives or units(model) or ready.others:
            return frozenset()
        return find_early(ready.profile, ready.plan)

    def listen(self, handle: Handle) -> None:
        super().listen(handle)
        handle.made_early = self._early.made

    def stepped(self, model: nn.Module) -> None:
        """Note that an optimizer has taken a step. If one rank of a pipeline has failed, all raise its error here."""
        try:
            self._pipeline.stepped()
        except AutockptError:
            self.give_up(model)
            raise

    def end_early_replays(self) -> None:
        self._early.end()
