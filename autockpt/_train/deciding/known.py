"""What is known of a model's steps, and the plans that were made for them. Frozen: changing it returns a new `History`.

    steps ─▶ learning, timed_by, following ─▶ known ─▶ planned ─▶ ready ─▶ current
             refusing, counting            ─▶ without_plans: plans are made anew

What is only counted from step to step is in `StepState`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import nn

from ..._calls.objects.anatomy import Anatomy, anatomy, changed
from ..._choose.index.passes import Passes
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._record.optimizers.memory import OptimizerMemory, Optimizers
from ..._record.seconds.timed import Timing
from ..._record.written.attribute import unlike_bytes
from ..._record.written.recorded import Recorded
from ..._run.compare.checks import ReplayChecks
from ..batches.batch import Batch, Forward, Kind
from ..batches.headroom import roomy

MOST_KINDS = 8
"""How many kinds of steps are remembered, and how many plans. The oldest are dropped first."""

MOST_ALIKE = 4
"""How many kinds may differ in nothing but whole numbers. Then those numbers are taken for counters, and ignored."""

MOST_UNPLANNED = 4
"""How many kinds are recorded before the first plan. Then a warning says that there is none yet."""


class ProfileSource:
    """The profile of a recorded step. It is made when a plan first needs it, and replaces the recording: it is smaller.

    Args:
        recorded: the recording; None if the profile is given.
        profile: the profile.

    Attributes:
        recorded: the recording; None once there is a profile.
        profile: the profile; None until it is made.
    """

    __slots__ = ("profile", "recorded")

    def __init__(self, recorded: Recorded | None = None, profile: Profile | None = None) -> None:
        self.recorded, self.profile = recorded, profile

    def made(self, begins: Forward, slower: float, memory: OptimizerMemory) -> Profile:
        """Return the profile.

        Args:
            begins: a forward of the model.
            slower: seconds of a plain step as a ratio to those that the recording measured.
            memory: what the optimizers need.
        """
        if self.profile is None:
            assert self.recorded is not None
            seconds = self.recorded.seconds.scaled(slower)
            self.profile = self.recorded.profile(begins.model, begins.device, seconds, memory)
            self.recorded = None
        return self.profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A kind of step that was recorded.

    Attributes:
        kind: the kind.
        anatomy: which modules the model had in it.
        nodes: how many autograd nodes its forwards made.
        backwards: how many backward passes it had.
        keeping: how many of those kept their graph.
        reached: which trainable parameters get a gradient, by index.
        source: its profile, or what that is made of.
        tight: whether to plan without headroom: no plan keeps a larger step to the budget, or none can be predicted.
        stood: sizes of tensors that the loop made before its forwards, and that its recording counts already.
        before_bytes: bytes of what else the loop allocates before such a step; they stay allocated through the step.
    """

    kind: Kind
    anatomy: Anatomy
    nodes: int = 0
    backwards: int = 1
    keeping: int = 0
    reached: frozenset[int] = frozenset()
    source: ProfileSource = field(default_factory=ProfileSource, compare=False)
    tight: bool = False
    stood: tuple[int, ...] = ()
    before_bytes: int = 0

    @classmethod
    def of(cls, kind: Kind, nodes: int, recorded: Recorded, made: Sequence[int], keeping: int = 0) -> Known:
        """Return what is known of a step that was just recorded.

        What the loop allocates before such a step is taken to be what was `made` before it, or what it allocated after
        it if that is more. `made` has sizes in bytes.
        """
        return cls(
            kind=kind,
            anatomy=recorded.anatomy,
            nodes=nodes,
            backwards=recorded.backwards,
            keeping=keeping,
            reached=recorded.reached,
            source=ProfileSource(recorded),
            tight=recorded.sharded,
            stood=recorded.stood,
            before_bytes=max(0, *(unlike_bytes(each, recorded.stood) for each in (recorded.made, made))),
        )

    def after(self, made: Sequence[int]) -> Known:
        """Count what was `made` before such a step, sizes in bytes. Returns itself if as much is counted already."""
        before_bytes = unlike_bytes(made, self.stood)
        return replace(self, before_bytes=before_bytes) if before_bytes > self.before_bytes else self

    def did_as_much(self, other: Known) -> bool:
        """Whether this step made as many nodes and had as many backward passes, in all and keeping their graph."""
        own, theirs = ((each.nodes, each.backwards, each.keeping) for each in (self, other))
        return all(map(operator.ge, own, theirs))

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether this kind covers a step that has made these forwards so far and began with these gradients."""
        return self.kind.covers(batches, gradient_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What a plan counts on in its steps, besides what one forward and backward show.

    Attributes:
        gradients: whether gradients exist as a step begins, so that it accumulates into them.
        outputs: whether the loop holds the outputs until backward is over.
        optimizer: what trains the model; None if the user gave none and none has taken a step.
    """

    gradients: bool = True
    outputs: bool = True
    optimizer: Optimizers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A plan, and the kind of step that it holds to the budget.

    Attributes:
        kind: the kind.
        profile: the profile of such a step.
        plan: the plan.
        unfit: why the plan does not hold the step to the budget, if no plan does; else empty.
        checks: compares its replays with their forwards.
        keeping: how many backward passes that keep their graph the plan counts on.
        others: other kinds of steps that begin alike, with their profiles. The plan holds them to the budget too.
    """

    kind: Kind
    profile: Profile
    plan: Plan
    unfit: str = ""
    checks: ReplayChecks | None = None
    keeping: int = 0
    others: tuple[tuple[Kind, Profile], ...] = ()

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether the plan is for a step that has made these forwards so far and began with these gradients."""
        return self.kind.covers(batches, gradient_bytes) or any(
            kind.covers(batches, gradient_bytes) for kind, _ in self.others
        )

    @property
    def profiles(self) -> list[Profile]:
        """The profiles of all steps that it holds to the budget."""
        return [self.profile, *(profile for _, profile in self.others)]

    @property
    def begin_bytes(self) -> int:
        """Predicted bytes allocated as such a step begins, without gradients."""
        return self.profile.static.total_bytes - self.profile.static.gradient_bytes

    @property
    def backwards(self) -> int:
        """How many backward passes the plan counts on, without those inside others."""
        return 1 + max(len(each.backward_ticks) - len(each.nested_ticks) for each in self.profiles)

    @property
    def calls(self) -> dict[str, int]:
        """How often a step calls each module, at most, by module name."""
        found: dict[str, int] = {}
        for call in (call for profile in self.profiles for call in profile.calls):
            found[call.name] = max(found.get(call.name, 0), call.occurrence + 1)
        return found

    def standing(self, optimizer: Optimizers | None) -> LoopState:
        """Return what the plan counts on in its steps, if this `optimizer` trains the model."""
        outputs = self.profile.holds_outputs
        return LoopState(gradients=self.kind.gradient_bytes > 0, outputs=outputs, optimizer=optimizer)


def keeping_of(profile: Profile) -> int:
    """Return how many backward passes of a step keep their graph; O(saves)."""
    return sum(Passes(profile).of_step_keeping)


T = TypeVar("T", Known, Ready)


def covering(among: Iterable[T], batch: Batch, gradient_bytes: int) -> T | None:
    """Return the first that covers a step with this first batch and these gradients; None if none does."""
    return next((each for each in among if each.covers([batch], gradient_bytes)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known.

    Attributes:
        known: kinds of steps that were recorded, newest first.
        ready: plans that were made for them, newest first.
        current: the plan that is on the model.
        numbers: whether steps are of different kinds if whole numbers among their arguments differ.
        slower: seconds of a timed step as a ratio to those that its recording measured; None before a step was timed.
        error_bytes: by how much measured peaks exceeded the prediction without this correction.
        beside_bytes: bytes allocated beside the step that the newest plan is for; 0 if the device does not tell.
        given: whether all that is known comes from a batch that the user gave before any step.
        refused: calls that cannot be replayed, by key with the reason, besides those that profiles refuse.
        counted: what optimizers need, as the newest plan counts it; None before the first plan.
        stepped: whether optimizers had taken steps when that plan was made.
        all_reached: whether optimizers train parameters that no recorded step gave a gradient, as of unused experts.
    """

    known: tuple[Known, ...] = ()
    ready: tuple[Ready, ...] = ()
    current: Ready | None = None
    numbers: bool = True
    slower: float | None = None
    error_bytes: int = 0
    beside_bytes: int = 0
    given: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    counted: OptimizerMemory | None = None
    stepped: bool = False
    all_reached: bool = False

    @property
    def timed(self) -> bool:
        """Whether a step was timed."""
        return self.slower is not None

    @property
    def step_seconds(self) -> float | None:
        """Seconds of the newest recorded step that has no profile yet, as timed; None if there is none."""
        found = (each.source.recorded for each in self.known if each.source.recorded is not None)
        return next((each.seconds.plain_seconds * (self.slower or 1.0) for each in found), None)

    def changed(self, model: nn.Module) -> str:
        """Say how the model has changed since the newest recorded step; empty if it has not, or there is none."""
        return changed(self.known[0].anatomy, anatomy(model)) if self.known else ""

    @property
    def late(self) -> bool:
        """Whether there is no plan yet, though `MOST_UNPLANNED` kinds of steps were recorded."""
        return self.current is None and len(self.known) >= MOST_UNPLANNED

    def has_met(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether a recorded step began with these forwards, whatever their sizes."""
        return any(each.kind.covers(batches, gradient_bytes, sizes=False) for each in self.known)

    def recording(self, batch: Batch, gradient_bytes: int) -> Known | None:
        """Return the recorded kind that covers a step with this first batch, if need be with headroom."""
        roomy = (each for each in self.known if self.roomy(each).covers([batch], gradient_bytes))
        return covering(self.known, batch, gradient_bytes) or next(roomy, None)

    def plan_for(self, batch: Batch, gradient_bytes: int) -> Ready | None:
        """Return the plan for a step with this first batch: the plan that is on the model if it covers the step."""
        if self.current is not None and self.current.covers([batch], gradient_bytes):
            return self.current
        return covering(self.ready, batch, gradient_bytes)

    def roomy(self, known: Known) -> Kind:
        """Return the kind with headroom in the sizes that vary between recorded steps."""
        return known.kind if known.tight else roomy(known.kind, [each.kind for each in self.known])

    def learning(self, known: Known) -> History:
        """Remember a recorded step. It replaces an earlier one of its kind, unless that one did as much."""
        before = next((each for each in self.known if each.kind == known.kind), None)
        if before is not None and before.did_as_much(known):
            return self
        kinds = (known, *[each for each in self.known if each is not before][: MOST_KINDS - 1])
        alike = [each for each in kinds if each.kind.without_numbers() == known.kind.without_numbers()]
        if len(alike) != MOST_ALIKE:
            return replace(self, known=kinds, given=False)
        largest = max(alike, key=lambda each: each.nodes)
        largest = replace(largest, kind=largest.kind.without_numbers())
        return replace(self, known=(largest,), numbers=False).without_plans()

    def timed_by(self, kind: Kind, timing: Timing) -> History:
        """Replace the seconds of a recorded step that has no profile yet by those of a timed step of this kind."""
        known = next((each for each in self.known if each.source.recorded is not None), None)
        if known is None or (recorded := known.source.recorded) is None or not timing.kinds:
            return self
        seconds = timing.seconds(recorded.run, recorded.seconds)
        alike = known.kind == kind and recorded.seconds.plain_seconds > 0
        slower = seconds.plain_seconds / recorded.seconds.plain_seconds if alike else 1.0
        faster = ProfileSource(replace(recorded, seconds=seconds.scaled(1 / slower)))
        return replace(self.knowing(known, replace(known, source=faster)), slower=slower)

    def following(self, batch: Batch, gradient_bytes: int, made: Sequence[int]) -> History:
        """Count in all steps of a kind what the loop `made` before this one: sizes in bytes."""
        known = covering(self.known, batch, gradient_bytes)
        if known is None or (after := known.after(made)) is known:
            return self
        return self.knowing(known, after).without_plans()

    def knowing(self, known: Known, more: Known) -> History:
        """Replace what is known of a kind of step by `more`."""
        return replace(self, known=tuple(more if each is known else each for each in self.known))

    def refusing(self, faults: Mapping[str, str]) -> History:
        """Plan no replays of these calls from now on; by key, with the reason."""
        return replace(self, refused={**self.refused, **faults}).without_plans()

    def counting(self, error_bytes: int) -> History:
        """Add to later predictions by how much a step's measured peak exceeded the predicted one."""
        return replace(self, error_bytes=self.error_bytes + error_bytes).without_plans()

    def planned(self, ready: Ready) -> History:
        """Add a plan."""
        return replace(self, ready=(ready, *self.ready[: MOST_KINDS - 1]))

    def without_plans(self) -> History:
        """Drop all plans, so that they are made anew."""
        return replace(self, ready=(), current=None)
