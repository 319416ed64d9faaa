"""Kinds of steps that were recorded, and the plans for them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch.optim import Optimizer

from .._data.plan import Plan
from .._data.profile import Profile
from .._device import device_of
from .._frames import Nets
from .._record.optimizer import OptimizerMemory, choose_optimizers, optimizer_memory
from .._record.recorded import Recorded
from .._record.recorder import record_step
from .._record.step import Arguments, training_step
from .._record.timed import TimedStep
from .._stash.held import HeldStashes
from ..solvers.errors import Infeasible, TooCostly
from ..solvers.units import format_bytes
from .account import Account
from .alike import MOST_OTHERS, ready_for, shared, with_others
from .batch import Batch, Forward, Kind, gradient_bytes
from .headroom import enlarged, grown, roomy
from .known import Known, Ready, covering
from .refusing import refusing
from .request import Request, less_margin

_log = logging.getLogger("autockpt")

MOST_KINDS = 8
"""Kinds of steps that are remembered, and plans; the oldest go first."""

MOST_ALIKE = 4
"""Kinds that differ in nothing but whole numbers; from then on those are taken to count something."""

MOST_UNPLANNED = 4
"""Kinds that are recorded before a plan; more is said."""


class Plans:
    """What is known of a model's steps, and the plans that were made for them.

    Args:
        request: what the user asked for.
        stashes: opens stashes for the rehearsals of plans.

    Attributes:
        current: the plan that is on the model, and what it is for.
        timed: whether seconds are known.
        account: what has become of steps.
        numbers: whether whole numbers among the arguments make a kind of step.
    """

    def __init__(self, request: Request, stashes: HeldStashes) -> None:
        self._request, self._stashes = request, stashes
        self._known: list[Known] = []  # the newest first
        self._ready: list[Ready] = []
        self.current: Ready | None = None
        self.numbers = True
        self._error_bytes = 0  # by how much measured steps stood above what was predicted without it
        self._slower: float | None = None  # a timed step over what its recording told of seconds
        self._counted: OptimizerMemory | None = None  # in the newest plan
        self._stepped = self._all_reached = False  # whether optimizers had taken steps then; whether all is counted
        self.account = Account(request.goal)
        self._refused: dict[str, str] = {}  # calls that cannot be replayed, beside those of which profiles know

    @property
    def timed(self) -> bool:
        """Whether seconds are known."""
        return self._slower is not None

    def knows(self, batch: Batch, gradient_bytes: int, *, sizes: bool = True) -> bool:
        """Whether a recording covers a step that begins so, with headroom where sizes vary; or of whatever `sizes`."""
        if sizes:
            return self._recording(batch, gradient_bytes) is not None
        return self.has_met([batch], gradient_bytes)

    def has_met(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether a step was recorded that made these forwards first, whatever their sizes."""
        return any(each.kind.covers(batches, gradient_bytes, sizes=False) for each in self._known)

    @property
    def late(self) -> bool:
        """Whether so many steps were recorded that there should be a plan."""
        return self.current is None and len(self._known) >= MOST_UNPLANNED

    def ready(self, batch: Batch, gradient_bytes: int) -> Ready | None:
        """Return the plan for a step that begins so: the one that is on the model, where that can stay."""
        return covering((*filter(None, [self.current]), *self._ready), batch, gradient_bytes)

    def prepare(self, model: torch.nn.Module, inputs: object) -> Ready:
        """Plan before any step, on a batch that the user gives; errors as for `autockpt.apply`."""
        loss, largest = self._request.loss, self._request.plan_for
        step = training_step(model, inputs, loss)
        begins = Forward(model, model.forward, (step.args, step.kwargs))
        if largest:
            begins = begins._replace(arguments=enlarged(begins, largest))
            step = training_step(model, Arguments(*begins.arguments), loss)
        kind = Kind(batches=(begins.batch(),), gradient_bytes=gradient_bytes(model))
        profile = record_step(step, optimizer=self._request.optimizer)
        self._known, self._slower = [Known(kind=kind, profile=profile)], 1.0
        self._counted = OptimizerMemory(
            state_bytes=profile.static.optimizer_bytes,
            step_bytes=profile.optimizer_step_bytes,
            source=profile.optimizer,
        )
        self.current = self._ready_for(kind, profile, self._request.solve(profile, device_of(step.device)))
        self._ready = [self.current]
        self.account.planned(self.current.plan, "a batch was given")
        return self.current

    def learn(self, kind: Kind, nodes: int, recorded: Recorded, made: Sequence[int] = ()) -> bool:
        """Remember a recorded step, unless one of its kind was that made as many calls; returns whether it is."""
        before = next((each for each in self._known if each.kind == kind), None)
        if before is not None:
            if before.nodes >= nodes and before.backwards >= recorded.backwards:
                return False
            self._known.remove(before)
        known = Known.of(kind, nodes, recorded, made)
        self._known = [known, *self._known[: MOST_KINDS - 1]]
        alike = [each for each in self._known if each.kind.without_numbers() == kind.without_numbers()]
        if len(alike) == MOST_ALIKE:
            self.numbers, largest = False, max(alike, key=lambda each: each.nodes)
            largest.kind = largest.kind.without_numbers()
            self._known = [largest]
            self.forget_plans()
        return True

    def precede(self, batch: Batch, gradient_bytes: int, made: Sequence[int]) -> None:
        """Count what the loop `made` before the step that begins so, sizes, in steps of its kind.

        It was made after a recorded step, which may be of another kind.
        """
        known = covering(self._known, batch, gradient_bytes)
        if known is not None and known.follows(made):
            self.forget_plans()

    def refuse(self, faults: Mapping[str, str]) -> None:
        """Count on no replay of these calls, by key with the reason, and make plans anew from now on."""
        self._refused |= faults
        self.account.refuse(faults)
        self.forget_plans()

    def count(self, error_bytes: int) -> None:
        """Count from now on what a step was measured to hold above the predicted peak of the plan that is on."""
        self._error_bytes += error_bytes
        self.forget_plans()

    def forget_plans(self) -> None:
        """Make plans anew from now on."""
        self._ready, self.current = [], None

    def time(self, kind: Kind, step: TimedStep) -> None:
        """Take the seconds of a timed step for those of the recorded one, if there is one."""
        known = next((each for each in self._known if each.recorded is not None), None)
        if known is None or known.recorded is None or not step.complete:
            return
        recorded = known.recorded.seconds
        seconds = step.seconds(known.recorded.run, recorded)
        alike = known.kind == kind and recorded.plain_seconds > 0
        self._slower = seconds.plain_seconds / recorded.plain_seconds if alike else 1.0
        known.recorded = dataclasses.replace(known.recorded, seconds=seconds.scaled(1 / self._slower))
        _log.info("timed a step: %.3g s without what spilling took", seconds.plain_seconds)

    def counts(self, model: torch.nn.Module, device: torch.device, optimizers: Sequence[Optimizer]) -> bool:
        """Whether the newest plan counts all that these optimizers need; else plans are made anew from now on."""
        counted = self._counted
        if counted is None or not self._known:
            return True  # there is none
        memory = self._memory(model, device, self._known[0], optimizers)
        if memory.state_bytes <= counted.state_bytes and memory.step_bytes <= counted.step_bytes:
            return True
        self._all_reached = self._stepped  # they train more than recorded steps reached, as experts do
        self.forget_plans()
        return False

    def make(self, begins: Forward, gradient_bytes: int, optimizers: Sequence[Optimizer], reason: str) -> Ready:
        """Plan for the step that begins, with headroom where sizes have been seen to vary.

        Args:
            begins: its first forward.
            gradient_bytes: of the gradients with which it begins.
            optimizers: those that have been seen to step.
            reason: why, for the log.

        Raises:
            Infeasible, TooCostly: no plan keeps it to what was asked for, and it is the first, or `strict` was.
        """
        began, first = time.perf_counter(), self._counted is None
        known = self._recording(begins.batch(numbers=self.numbers), gradient_bytes) or self._known[0]
        memory = self._memory(begins.model, begins.device, known, optimizers)
        self._counted, self._stepped = memory, bool(optimizers)
        profile = self._profile(begins, known, memory)
        try:
            ready = self._with_headroom(begins, known, profile)
            ready = ready or self._ready_for(
                known.kind, profile, self._request.solve(profile, device_of(begins.device), bounded=first)
            )
        except (Infeasible, TooCostly) as error:
            if first or self._request.strict:
                raise
            ready = self._ready_for(known.kind, profile, error.plan, str(error))
        else:
            ready = self._shared(ready, known, begins, optimizers)
        self._ready = [ready, *self._ready[: MOST_KINDS - 1]]
        _log.info(
            "planned in %.1f s (%s), for batches of %s: peak %s, plain %s, recompute overhead %.1f %%, all predicted",
            time.perf_counter() - began,
            reason,
            ready.kind.describe(),
            format_bytes(ready.plan.peak_bytes),
            format_bytes(ready.plan.plain_peak_bytes),
            100 * (ready.plan.recompute_overhead or 0.0),
        )
        self.account.planned(ready.plan, reason)
        return ready

    def _shared(self, ready: Ready, known: Known, begins: Forward, optimizers: Sequence[Optimizer]) -> Ready:
        """Return what is ready for all kinds of steps that would begin under it, where one plan is found that does."""
        others = [
            each
            for each in self._known
            if each is not known
            and ready.covers(each.kind.batches[:1], each.kind.gradient_bytes)
            and not ready.covers(each.kind.batches, each.kind.gradient_bytes)
        ][:MOST_OTHERS]
        if not others:
            return ready
        device, kinds = device_of(begins.device), [known, *others]
        memories = [self._memory(begins.model, begins.device, each, optimizers) for each in kinds]
        profiles = [self._profile(begins, each, memory) for each, memory in zip(kinds, memories, strict=True)]
        solve = functools.partial(self._request.solve, device=device, bounded=False)
        budget_bytes = less_margin(self._request.goal, device).budget_bytes
        plan, number, held = shared(ready.plan, profiles, budget_bytes, solve)
        if plan is not ready.plan:
            ready = self._ready_for(kinds[number].kind, profiles[number], plan)
        return with_others(ready, [(kinds[i].kind, profiles[i]) for i in held])

    def _ready_for(self, kind: Kind, profile: Profile, plan: Plan, unfit: str = "") -> Ready:
        nets = Nets.of(plan, self._request.check, governed=True, stashes=self._stashes)
        return ready_for(kind, profile, plan, nets, unfit)

    def _memory(
        self, model: torch.nn.Module, device: torch.device, known: Known, optimizers: Sequence[Optimizer]
    ) -> OptimizerMemory:
        """What optimizers need that have been seen to step, or else the one that was told."""
        chosen = choose_optimizers(optimizers or self._request.optimizer, model)
        reached = range(len(list(model.parameters()))) if self._all_reached else known.reached
        return optimizer_memory(chosen, reached, device_of(device))

    def _profile(self, begins: Forward, known: Known, memory: OptimizerMemory) -> Profile:
        """The profile of a kind of step, with what optimizers need by now."""
        if known.profile is None:
            assert known.recorded is not None
            seconds = known.recorded.seconds.scaled(self._slower or 1.0)
            known.profile = known.recorded.profile(begins.model, begins.device, seconds, memory)
            known.recorded = None  # a profile takes less
        static = msgspec.structs.replace(
            known.profile.static,
            optimizer_bytes=memory.state_bytes,
            other_bytes=known.profile.static.other_bytes + known.before_bytes + self._error_bytes,
        )
        return msgspec.structs.replace(
            refusing(known.profile, self._refused),
            optimizer=memory.source,
            optimizer_step_bytes=memory.step_bytes,
            static=static,
        )

    def _recording(self, batch: Batch, gradient_bytes: int) -> Known | None:
        """The recording that covers a step that begins so, or else does with headroom."""
        roomy = (each for each in self._known if self._roomy(each).covers([batch], gradient_bytes))
        return covering(self._known, batch, gradient_bytes) or next(roomy, None)

    def _roomy(self, known: Known) -> Kind:
        """A kind with headroom where recorded sizes vary."""
        if known.tight:
            return known.kind
        return roomy(known.kind, [each.kind for each in self._known])

    def _with_headroom(self, begins: Forward, known: Known, profile: Profile) -> Ready | None:
        """Plan for larger batches than were recorded: those that were told, or some headroom where sizes vary."""
        request, kind, own = self._request, self._roomy(known), known.kind.batches
        if request.plan_for and len(own) == 1:
            told = begins._replace(arguments=enlarged(begins, request.plan_for)).batch(numbers=self.numbers).shapes
            shapes = tuple(tuple(map(max, *pair)) for pair in zip(kind.batches[0].shapes, told, strict=True))
            kind = dataclasses.replace(kind, batches=(dataclasses.replace(own[0], shapes=shapes),))
        if kind == known.kind:
            return None
        large = grown(begins, profile, own[0].shapes, kind.batches[0].shapes, request.loss)
        try:
            return self._ready_for(kind, large, request.solve(large, device_of(begins.device), bounded=not self._ready))
        except (Infeasible, TooCostly):
            if request.plan_for:
                raise
            known.tight = True  # the batch itself may fit
            return None
