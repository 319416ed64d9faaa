"""Makes plans for the kinds of steps that were recorded.

What is allocated on the device beside the model and its step counts in them, whoever holds it: other models, averages
of weights, data, later batches.

30   allocated as a step begins, by the device's own statistics
26   of that, what the plan counts anyway: the model, its batch, the optimizer's state
 4   the rest, which is taken to stay allocated through the step
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch.optim import Optimizer

from .._calls.objects.anatomy import anatomy
from .._calls.values import tensors
from .._data.plan import Plan
from .._data.profile import Profile
from .._data.step.tables import RefusedPart
from .._data.text.keys import key_of, split_key
from .._ranks.refuse import refuse_outside_training
from .._record.alive import static_bytes, storage_bytes
from .._record.optimizers.memory import OptimizerMemory, choose_optimizers, optimizer_memory
from .._record.optimizers.shadow import state_tensors
from .._record.recorder import record_step
from .._record.step import Arguments, training_step
from .._run.compare.checks import ReplayChecks
from .._stash.held import HeldStashes
from .._stash.shard import is_unlike
from .._torch.devices import device_of
from ..solvers.errors import Infeasible, TooCostly
from .batches.batch import Forward, Kind, gathered_bytes, gradient_bytes
from .batches.headroom import enlarged, grown, larger_kind
from .deciding.alike import MOST_OTHERS, shared
from .deciding.known import History, Known, ProfileSource, Ready, keeping_of
from .messages.spoken import in_unit
from .request import Request

_log = logging.getLogger("autockpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOrder:
    """What a plan is wanted for.

    Attributes:
        history: what is known of the model's steps.
        begins: a forward of such a step.
        known: the kind of step.
        memory: what the optimizers need.
        profile: the profile of such a step, with what is allocated beside it now.
        optimizers: the optimizers that have taken steps.
        is_first: whether there was no plan before.
    """

    history: History
    begins: Forward
    known: Known
    memory: OptimizerMemory
    profile: Profile
    optimizers: Sequence[Optimizer] = ()
    is_first: bool = True


class Plans:
    """Makes the plans of one model's steps.

    Args:
        request: what the user asked for.
        stashes: opens stashes for the rehearsals of plans.

    Attributes:
        request: the same.
    """

    def __init__(self, request: Request, stashes: HeldStashes) -> None:
        self.request, self._stashes = request, stashes

    def wanted_for(self, model: torch.nn.Module, inputs: object) -> PlanOrder:
        """Record a step on a batch that the user gives, before the loop's first step; return the order for its plan."""
        loss, largest = self.request.loss, self.request.plan_for
        step = training_step(model, inputs, loss)
        begins = Forward(model, model.forward, (step.args, step.kwargs))
        if largest:
            begins = begins._replace(arguments=enlarged(begins, largest))
            step = training_step(model, Arguments(*begins.arguments), loss)
        kind = Kind(batches=(begins.batch(),), gradient_bytes=gradient_bytes(model))
        profile = record_step(step, optimizer=self.request.optimizer)
        memory = OptimizerMemory(
            state_bytes=profile.static.optimizer_bytes,
            step_bytes=profile.optimizer_step_bytes,
            source=profile.optimizer,
        )
        known = Known(kind=kind, anatomy=anatomy(model), source=ProfileSource(profile=profile))
        history = History(known=(known,), slower=1.0, counted=memory, given=True)
        return self._with_beside(history, begins, known, memory, self.request.optimizers())

    def wanted(
        self, history: History, begins: Forward, gradient_bytes: int, optimizers: Sequence[Optimizer]
    ) -> PlanOrder:
        """Return what a plan is wanted for as a step begins.

        Args:
            history: what is known of the model's steps.
            begins: the step's first forward.
            gradient_bytes: bytes of the gradients that exist as it begins.
            optimizers: the optimizers that have taken steps so far.

        Raises:
            NotApplicable: `plan_for` is set, and the model is sharded.
        """
        if self.request.plan_for:
            refuse_outside_training(begins.model)
        known = history.recording(begins.batch(numbers=history.numbers), gradient_bytes) or history.known[0]
        memory, is_first = self._memory(history, begins, known, optimizers), history.counted is None
        history = dataclasses.replace(history, counted=memory, stepped=bool(optimizers))
        wanted = self._with_beside(history, begins, known, memory, optimizers)
        return dataclasses.replace(wanted, optimizers=optimizers, is_first=is_first)

    def outgrown(self, history: History, begins: Forward, optimizers: Sequence[Optimizer]) -> bool:
        """Whether these optimizers need more than the newest plan counts."""
        counted = history.counted
        if counted is None or not history.known:
            return False  # there is no plan yet
        memory = self._memory(history, begins, history.known[0], optimizers)
        return memory.state_bytes > counted.state_bytes or memory.step_bytes > counted.step_bytes

    def made(self, wanted: PlanOrder, *, gathers: bool = False) -> Ready:
        """Make a plan, with headroom if sizes have been seen to vary.

        Args:
            wanted: what it is for.
            gathers: whether its replays may gather units of FSDP2, since all ranks run the same plan.

        Raises:
            Infeasible, TooCostly: no plan keeps to what was asked for, and this is the first plan, or `strict` is set.
        """
        profile, known = _offered(wanted.profile, gathers), wanted.known
        try:
            if ready := self._with_headroom(wanted, profile):
                return ready
            return self._ready_for(known.kind, profile, self.request.solve(profile, device_of(wanted.begins.device)))
        except (Infeasible, TooCostly) as error:
            if wanted.is_first or self.request.strict:
                raise
            return self._ready_for(known.kind, profile, error.plan, str(error))

    def adopted(self, wanted: PlanOrder, plan: Plan, unfit: str, *, gathers: bool = False) -> Ready | None:
        """Take another rank's plan for batches of the recorded size; None if it does not hold them to the budget.

        A plan that is known to be `unfit` is taken even so.
        """
        known, device = wanted.known, device_of(wanted.begins.device)
        if self.request.plan_for or wanted.history.roomy(known) != known.kind:
            return None
        profile = _offered(wanted.profile, gathers)
        if mine := self.request.restated(plan, profile, device):
            return self._ready_for(known.kind, profile, mine)
        mine = self.request.restated(plan, profile, device, fits=False) if unfit else None
        return None if mine is None else self._ready_for(known.kind, profile, mine, unfit)

    def for_kinds_alike(self, ready: Ready, wanted: PlanOrder) -> Ready:
        """Return `ready`, or a plan that also holds other known kinds of steps that begin like it, if one does."""
        history, known, device = wanted.history, wanted.known, device_of(wanted.begins.device)
        others = [
            each
            for each in history.known
            if each.kind != known.kind
            and ready.covers(each.kind.batches[:1], each.kind.gradient_bytes)
            and not ready.covers(each.kind.batches, each.kind.gradient_bytes)
        ][:MOST_OTHERS]
        if ready.unfit or not others:
            return ready
        kinds = [known.kind, *(each.kind for each in others)]
        profiles = [_offered(self._profile_of(each, wanted), gathers=False) for each in (known, *others)]
        request, free = self.request, self.request.goal.budget_bytes is None
        plan, number, held = shared(
            ready.plan,
            profiles,
            lambda profile, share: request.solve(profile, device, share=share),
            lambda plan, profile: request.restated(plan, profile, device, fits=not free),
            any_will_do=free,
        )
        if plan is not ready.plan:
            ready = self._ready_for(kinds[number], profiles[number], plan)
        both = [(kinds[each], profiles[each]) for each in held if kinds[each] != ready.kind]
        keeping = max([ready.keeping, *(keeping_of(profile) for _, profile in both)])
        return dataclasses.replace(ready, others=tuple(both), keeping=keeping)

    def history_with(self, ready: Ready, wanted: PlanOrder) -> History:
        """Return what is known once a plan was made."""
        history, known = wanted.history, wanted.known
        if ready.kind == known.kind != history.roomy(known) and not self.request.plan_for:
            # No plan holds the headroom to the budget, but the recorded batch itself may fit.
            history = history.knowing(known, dataclasses.replace(known, tight=True))
        return history.planned(ready)

    def _ready_for(self, kind: Kind, profile: Profile, plan: Plan, unfit: str = "") -> Ready:
        checks = ReplayChecks.of(plan, self.request.check, governed=True, stashes=self._stashes)
        keeping = keeping_of(profile)
        return Ready(kind=kind, profile=profile, plan=plan, unfit=unfit, checks=checks, keeping=keeping)

    def _memory(
        self, history: History, begins: Forward, known: Known, optimizers: Sequence[Optimizer]
    ) -> OptimizerMemory:
        """Return what optimizers need: those that have taken steps, or else the one that the user gave."""
        chosen = choose_optimizers(optimizers or self.request.optimizer, begins.model, seen=bool(optimizers))
        reached = range(len(list(begins.model.parameters()))) if history.all_reached else known.reached
        return optimizer_memory(chosen, reached, device_of(begins.device))

    def _profile_of(self, known: Known, wanted: PlanOrder) -> Profile:
        """Return the profile of another kind of step, with what its optimizers need."""
        memory = self._memory(wanted.history, wanted.begins, known, wanted.optimizers)
        return _profile(wanted.history, wanted.begins, known, memory)

    def _with_beside(
        self,
        history: History,
        begins: Forward,
        known: Known,
        memory: OptimizerMemory,
        optimizers: Sequence[Optimizer],
    ) -> PlanOrder:
        """Return what a plan is wanted for, with what is allocated beside the step now. That counts from now on."""
        profile = _profile(dataclasses.replace(history, beside_bytes=0), begins, known, memory)
        counted_bytes = profile.static.other_bytes - history.error_bytes
        coming_bytes = memory.state_bytes if memory.closure_bytes else 0
        beside_bytes = _beside(begins, optimizers, counted_bytes, coming_bytes)
        history = dataclasses.replace(history, beside_bytes=beside_bytes)
        if beside_bytes:
            size = in_unit(beside_bytes, self.request.goal)
            _log.info("%s stand on %s beside the step, and count", size, begins.device)
            profile = _profile(history, begins, known, memory)
        return PlanOrder(history=history, begins=begins, known=known, memory=memory, profile=profile)

    def _with_headroom(self, wanted: PlanOrder, profile: Profile) -> Ready | None:
        """Plan for larger batches than were recorded: those of `plan_for`, or with headroom if sizes vary.

        None if there is neither, or no plan holds the headroom to the budget.
        """
        request, history, begins, known = self.request, wanted.history, wanted.begins, wanted.known
        kind, own = history.roomy(known), known.kind.batches
        if request.plan_for and len(own) == 1:
            kind = larger_kind(begins, kind, request.plan_for, numbers=history.numbers)
        if kind == known.kind:
            return None
        alike = [each for each in history.known if each is not known and each.kind.batches[0].kind == own[0].kind]
        seen = ((each.kind.batches[0].shapes, _profile(history, begins, each, wanted.memory)) for each in alike)
        large = grown(begins, profile, own[0].shapes, kind.batches[0].shapes, request.loss, seen)
        try:
            return self._ready_for(kind, large, request.solve(large, device_of(begins.device)))
        except (Infeasible, TooCostly):
            if request.plan_for:
                raise
            return None


def _profile(history: History, begins: Forward, known: Known, memory: OptimizerMemory) -> Profile:
    """Return the profile of a kind of step, with the optimizers' present needs and all that is counted beside it."""
    profile = known.source.made(begins, history.slower or 1.0, memory)
    # What an optimizer allocates between calls of its closure is in `memory` already.
    made_bytes = max(known.before_bytes - memory.closure_bytes, 0)
    static = msgspec.structs.replace(
        profile.static,
        optimizer_bytes=memory.state_bytes,
        other_bytes=profile.static.other_bytes + made_bytes + history.error_bytes + history.beside_bytes,
    )
    return msgspec.structs.replace(
        refusing(profile, history.refused),
        optimizer=memory.source,
        optimizer_step_bytes=memory.step_bytes,
        static=static,
    )


def _offered(profile: Profile, gathers: bool) -> Profile:
    """Return a profile whose replays gather units of FSDP2 only if `gathers`."""
    return profile if gathers else msgspec.structs.replace(profile, units=None)


def _beside(begins: Forward, optimizers: Sequence[Optimizer], counted_bytes: int, coming_bytes: int = 0) -> int:
    """Return the bytes that are allocated beside the step that begins; 0 if the device keeps no statistics.

    Args:
        begins: the step's first forward.
        optimizers: the optimizers that train the model. Of their state, what they have made so far is allocated.
        counted_bytes: bytes of what else is allocated and counted already: workspaces, what the step before has left.
        coming_bytes: the least to deduct as optimizer state. The plan counts what LBFGS allocates between two calls of
            its closure as state, and though it is not in the optimizer's state, it may be allocated now.
    """
    device = device_of(begins.device)
    if device.level() is None:
        return 0
    device.wait()  # autograd's thread may still hold the last gradient of the previous step
    level = device.level()
    own_bytes = static_bytes(begins.model, device, tensors(begins.arguments)).total_bytes
    state_bytes = storage_bytes(device, (each for one in optimizers for each in state_tensors(one)))
    state_bytes = max(state_bytes, coming_bytes)
    allocated_bytes = level.allocated_bytes if level is not None else 0
    held_bytes = gradient_bytes(begins.model) + gathered_bytes(begins.model)
    return max(allocated_bytes - own_bytes - state_bytes - held_bytes - counted_bytes, 0)


def refusing(profile: Profile, faults: Mapping[str, str]) -> Profile:
    """Return a profile that refuses some calls, and those around them, whose replay would run them too.

    Where two of structurally identical calls are at fault, all are refused: the next plan would turn to the others.

    Args:
        profile: of the step.
        faults: keys of calls, with the reasons. Those that the step does not have count for nothing, nor do those whose
            boundary was to wait in parts and was not alike on all ranks: a plan without parts replays them.
    """
    faults = {key: reason for key, reason in faults.items() if not is_unlike(reason)}
    if not faults:
        return profile
    calls, functions = profile.calls, profile.functions
    numbers = {call.key: number for number, call in enumerate(calls)}
    at_fault = {key: numbers[caller] for key in faults if (caller := split_key(key)[0]) in numbers}
    places = zip(functions.call, functions.name, functions.occurrence, strict=True)
    functions_by_key = {(call, key_of(name, n)): number for number, (call, name, n) in enumerate(places)}
    times = Counter((calls[call].signature, split_key(key)[1]) for key, call in at_fault.items())
    refused: dict[int, str] = {}
    parts: dict[int, RefusedPart] = {}
    for key, call in at_fault.items():
        function = split_key(key)[1]
        several = times[calls[call].signature, function] > 1
        for number, other in enumerate(calls):
            if number != call and not (several and other.signature == calls[call].signature):
                continue
            if (number, function) in functions_by_key:
                index = functions_by_key[number, function]
                parts[index] = RefusedPart("function", index, faults[key])
            while number >= 0:
                refused.setdefault(number, faults[key])
                number = calls[number].parent
    known = profile.refused("call")
    new = (RefusedPart("call", number, reason) for number, reason in refused.items() if number not in known)
    return msgspec.structs.replace(profile, refusals=(*profile.refusals, *parts.values(), *new))
