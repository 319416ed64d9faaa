"""Makes plans for the kinds of steps that were recorded."""

from __future__ import annotations

import dataclasses
import functools
import logging
import operator
import time
from collections.abc import Sequence

import msgspec
import torch
from torch.optim import Optimizer

from .._batches.batch import Forward, Kind, gradient_bytes
from .._batches.headroom import enlarged, grown, larger_kind
from .._calls.anatomy import anatomy
from .._compare.checks import ReplayChecks
from .._data.plan import Plan
from .._data.profile import Profile
from .._device import device_of
from .._optimizer.memory import OptimizerMemory, choose_optimizers, optimizer_memory
from .._ranks.refuse import refuse_foretold
from .._record.recorded import Recorded
from .._record.recorder import record_step
from .._record.step import Arguments, training_step
from .._record.timed import Timing
from .._stash.held import HeldStashes
from .._tell.account import Account
from .._tell.spoken import in_unit
from ..solvers.errors import Infeasible, TooCostly
from .agreement import Agreement
from .alike import MOST_OTHERS, shared
from .history import History
from .known import Known, Ready
from .refusing import offered, refusing
from .request import Request, less_margin
from .standing import standing_beside

_log = logging.getLogger("autockpt")


class Plans:
    """Makes plans for a model's steps, and knows what has been seen of them.

    Args:
        request: what the user asked for.
        stashes: opens stashes for the rehearsals of plans.
        agreement: the agreement with other ranks.

    Attributes:
        history: what is known of the steps.
        account: how the steps ran, for the report.
    """

    def __init__(self, request: Request, stashes: HeldStashes, agreement: Agreement) -> None:
        self._request, self._stashes, self._agreement = request, stashes, agreement
        self.history, self.account = History(), Account(request.goal)

    def prepare(self, model: torch.nn.Module, inputs: object) -> Ready:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        loss, largest = self._request.loss, self._request.plan_for
        step = training_step(model, inputs, loss)
        begins = Forward(model, model.forward, (step.args, step.kwargs))
        if largest:
            begins = begins._replace(arguments=enlarged(begins, largest))
            step = training_step(model, Arguments(*begins.arguments), loss)
        kind = Kind(batches=(begins.batch(),), gradient_bytes=gradient_bytes(model))
        self._agreement.opens(model, given=True)
        try:
            profile = record_step(step, optimizer=self._request.optimizer)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            self._agreement.begins(model, able=False, failed=error, meanwhile="ran a step on the given batch")
            raise
        known = Known(kind=kind, anatomy=anatomy(model), profile=profile)
        memory = OptimizerMemory(
            state_bytes=profile.static.optimizer_bytes,
            step_bytes=profile.optimizer_step_bytes,
            source=profile.optimizer,
        )
        self.history = History(known=(known,), slower=1.0, counted=memory, given=True)
        _, profile = self._standing(begins, known, memory, self._request.optimizers())
        self._agreement.begins(model, able=True)
        ready = self._agreement.plan(
            profile.plain_peak_bytes,
            lambda: self._ready_for(kind, profile, self._request.solve(profile, device_of(step.device))),
            lambda plan, unfit: self._adopted(begins, known, profile, plan, unfit),
        )
        self.history = dataclasses.replace(self.history, ready=(ready,), current=ready)
        self.account.planned(ready.plan, "a batch was given")
        return ready

    def learn(self, kind: Kind, nodes: int, recorded: Recorded, made: Sequence[int] = (), keeping: int = 0) -> bool:
        """Remember a recorded step, unless a recorded one of its kind did as much. Return whether it is remembered.

        Args:
            kind: the kind.
            nodes: how many autograd nodes its forwards made.
            recorded: the step.
            made: sizes of what the loop allocated before it.
            keeping: how many of its backwards kept their graph.
        """
        before = next((each for each in self.history.known if each.kind == kind), None)
        did = (nodes, recorded.backwards, keeping)
        if before is not None and all(map(operator.ge, (before.nodes, before.backwards, before.keeping), did)):
            return False
        self.history = self.history.learning(Known.of(kind, nodes, recorded, made, keeping))
        return True

    def time(self, kind: Kind, timing: Timing) -> None:
        """Replace the seconds of a recorded step that has no profile yet by those of a timed step."""
        known = next((each for each in self.history.known if each.recorded is not None), None)
        if known is None or known.recorded is None or not timing.kinds:
            return
        recorded = known.recorded.seconds
        seconds = timing.seconds(known.recorded.run, recorded)
        alike = known.kind == kind and recorded.plain_seconds > 0
        slower = seconds.plain_seconds / recorded.plain_seconds if alike else 1.0
        faster = dataclasses.replace(known.recorded, seconds=seconds.scaled(1 / slower))
        history = self.history.knowing(known, dataclasses.replace(known, recorded=faster))
        self.history = dataclasses.replace(history, slower=slower)
        _log.info("timed a step: %.3g s without what spilling took", seconds.plain_seconds)

    def counts(self, begins: Forward, optimizers: Sequence[Optimizer]) -> bool:
        """Whether the newest plan counts all that these optimizers need. If not, all plans are dropped."""
        history = self.history
        if history.counted is None or not history.known:
            return True  # there is no plan yet
        memory = self._memory(begins, history.known[0], optimizers)
        if memory.state_bytes <= history.counted.state_bytes and memory.step_bytes <= history.counted.step_bytes:
            return True
        self.history = dataclasses.replace(history, all_reached=history.stepped).without_plans()
        return False

    def make(self, begins: Forward, gradient_bytes: int, optimizers: Sequence[Optimizer], reason: str) -> Ready:
        """Plan for the step that begins, with headroom if sizes have been seen to vary.

        Args:
            begins: its first forward.
            gradient_bytes: bytes of the gradients that exist as it begins.
            optimizers: the optimizers that have taken steps so far.
            reason: why a plan is made, for the log.

        Raises:
            Infeasible, TooCostly: no plan keeps to what was asked for, and this is the first plan, or `strict` is set.
            NotApplicable: `plan_for` is set, and the model is sharded.
            AutockptError: for a first plan, as for `Agreement`.
        """
        if self._request.plan_for:
            refuse_foretold(begins.model)
        began, first = time.perf_counter(), self.history.counted is None
        batch = begins.batch(numbers=self.history.numbers)
        known = self.history.recording(batch, gradient_bytes) or self.history.known[0]
        memory = self._memory(begins, known, optimizers)
        self.history = dataclasses.replace(self.history, counted=memory, stepped=bool(optimizers))
        known, profile = self._standing(begins, known, memory, optimizers)
        profile, offload = self._agreement.sharing(begins.model, profile, self._request.offload, begins.device)
        self._request = dataclasses.replace(self._request, offload=offload)

        def make() -> Ready:
            own = offered(profile, speaks=self._agreement.speaks)
            try:
                return self._with_headroom(begins, known, own, memory) or self._as_recorded(begins, known, own)
            except (Infeasible, TooCostly) as error:
                if first or self._request.strict:
                    raise
                return self._ready_for(known.kind, own, error.plan, str(error))

        ready = self._agreement.plan(
            profile.plain_peak_bytes, make, lambda plan, unfit: self._adopted(begins, known, profile, plan, unfit)
        )
        if not ready.unfit and not self._agreement.speaks:  # else all ranks have one plan, for this kind
            ready = self._shared(ready, known, begins, optimizers)
        self.history = self.history.planned(ready)
        _log.info(
            "planned in %.1f s (%s), for batches of %s: peak %s, plain %s, recompute overhead %.1f %%, all predicted",
            time.perf_counter() - began,
            reason,
            ready.kind.describe(),
            in_unit(ready.plan.peak_bytes, self._request.goal),
            in_unit(ready.plan.plain_peak_bytes, self._request.goal),
            100 * (ready.plan.recompute_overhead or 0.0),
        )
        self.account.planned(ready.plan, reason)
        return ready

    def _shared(self, ready: Ready, known: Known, begins: Forward, optimizers: Sequence[Optimizer]) -> Ready:
        """Return `ready`, or a plan that also holds other known kinds of steps that begin like it, if one does."""
        others = [
            each
            for each in self.history.known
            if each.kind != known.kind
            and ready.covers(each.kind.batches[:1], each.kind.gradient_bytes)
            and not ready.covers(each.kind.batches, each.kind.gradient_bytes)
        ][:MOST_OTHERS]
        if not others:
            return ready
        device, kinds = device_of(begins.device), [known.kind, *(each.kind for each in others)]
        memories = [self._memory(begins, each, optimizers) for each in (known, *others)]
        pairs = zip((known, *others), memories, strict=True)
        profiles = [offered(self._profile(begins, each, memory)[1], speaks=False) for each, memory in pairs]
        del others, pairs  # they hold the recordings, of which there are profiles now
        solve = functools.partial(self._request.solve, device=device)
        budget_bytes = less_margin(self._request.goal, device).budget_bytes
        plan, number, held = shared(ready.plan, profiles, budget_bytes, solve)
        if plan is not ready.plan:
            ready = self._ready_for(kinds[number], profiles[number], plan)
        both = [(kinds[each], profiles[each]) for each in held]
        return dataclasses.replace(ready, others=tuple(each for each in both if each[0] != ready.kind))

    def _ready_for(self, kind: Kind, profile: Profile, plan: Plan, unfit: str = "") -> Ready:
        checks = ReplayChecks.of(plan, self._request.check, governed=True, stashes=self._stashes)
        return Ready(kind=kind, profile=profile, plan=plan, unfit=unfit, checks=checks)

    def _as_recorded(self, begins: Forward, known: Known, profile: Profile) -> Ready:
        """Plan for batches of the recorded size."""
        plan = self._request.solve(profile, device_of(begins.device))
        return self._ready_for(known.kind, profile, plan)

    def _adopted(self, begins: Forward, known: Known, profile: Profile, plan: Plan, unfit: str) -> Ready | None:
        """Take another rank's plan for batches of the recorded size; None if it does not hold them to the budget.

        A plan that is known to be `unfit` is taken even so.
        """
        if self._request.plan_for or self.history.roomy(known) != known.kind:
            return None
        device, profile = device_of(begins.device), offered(profile, speaks=self._agreement.speaks)
        if mine := self._request.restated(plan, profile, device):
            return self._ready_for(known.kind, profile, mine)
        mine = self._request.restated(plan, profile, device, fits=False) if unfit else None
        return None if mine is None else self._ready_for(known.kind, profile, mine, unfit)

    def _memory(self, begins: Forward, known: Known, optimizers: Sequence[Optimizer]) -> OptimizerMemory:
        """Return what optimizers need: those that have taken steps, or else the one that the user gave."""
        chosen = choose_optimizers(optimizers or self._request.optimizer, begins.model, seen=bool(optimizers))
        reached = range(len(list(begins.model.parameters()))) if self.history.all_reached else known.reached
        return optimizer_memory(chosen, reached, device_of(begins.device))

    def _profile(self, begins: Forward, known: Known, memory: OptimizerMemory) -> tuple[Known, Profile]:
        """Return the profile of a kind of step, with the optimizers' present needs; and the `Known` that now has it."""
        history, profile = self.history, known.profile
        if profile is None:
            assert known.recorded is not None
            seconds = known.recorded.seconds.scaled(history.slower or 1.0)
            profile = known.recorded.profile(begins.model, begins.device, seconds, memory)
            more = dataclasses.replace(known, profile=profile, recorded=None)  # a profile takes less memory
            self.history, known = history.knowing(known, more), more
        # What an optimizer allocates between calls of its closure is in `memory` already.
        made_bytes = max(known.before_bytes - memory.closure_bytes, 0)
        static = msgspec.structs.replace(
            profile.static,
            optimizer_bytes=memory.state_bytes,
            other_bytes=profile.static.other_bytes + made_bytes + history.error_bytes + history.beside_bytes,
        )
        return known, msgspec.structs.replace(
            refusing(profile, history.refused),
            optimizer=memory.source,
            optimizer_step_bytes=memory.step_bytes,
            static=static,
        )

    def _standing(
        self, begins: Forward, known: Known, memory: OptimizerMemory, optimizers: Sequence[Optimizer]
    ) -> tuple[Known, Profile]:
        """Return the same as `_profile`, with what is now allocated beside the step. That counts from now on."""
        self.history = dataclasses.replace(self.history, beside_bytes=0)
        known, profile = self._profile(begins, known, memory)
        counted_bytes = profile.static.other_bytes - self.history.error_bytes
        coming_bytes = memory.state_bytes if memory.closure_bytes else 0
        beside_bytes = standing_beside(begins, optimizers, counted_bytes, coming_bytes)
        if not beside_bytes:
            return known, profile
        size = in_unit(beside_bytes, self._request.goal)
        _log.info("%s stand on %s beside the step, and count", size, begins.device)
        self.history = dataclasses.replace(self.history, beside_bytes=beside_bytes)
        return self._profile(begins, known, memory)

    def _with_headroom(self, begins: Forward, known: Known, profile: Profile, memory: OptimizerMemory) -> Ready | None:
        """Plan for larger batches than were recorded: those of `plan_for`, or with headroom if sizes vary.

        None if there is neither, or no plan holds the headroom to the budget.
        """
        request, kind, own = self._request, self.history.roomy(known), known.kind.batches
        if request.plan_for and len(own) == 1:
            kind = larger_kind(begins, kind, request.plan_for, numbers=self.history.numbers)
        if kind == known.kind:
            return None
        alike = [each for each in self.history.known if each is not known and each.kind.batches[0].kind == own[0].kind]
        seen = ((each.kind.batches[0].shapes, self._profile(begins, each, memory)[1]) for each in alike)
        large = grown(begins, profile, own[0].shapes, kind.batches[0].shapes, request.loss, seen)
        try:
            plan = request.solve(large, device_of(begins.device))
            return self._ready_for(kind, large, plan)
        except (Infeasible, TooCostly):
            if request.plan_for:
                raise
            tight = dataclasses.replace(known, tight=True)  # the recorded batch itself may fit
            self.history = self.history.knowing(known, tight)
            return None
