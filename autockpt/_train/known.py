"""What is known of one kind of step: its recording or profile, and a plan for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from .._batches.batch import Batch, Kind
from .._calls.anatomy import Anatomy
from .._compare.checks import ReplayChecks
from .._data.plan import Plan
from .._data.profile import Profile
from .._index.passes import Passes
from .._optimizer.memory import Optimizers
from .._record.attribute import unlike_bytes
from .._record.recorded import Recorded


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
        recorded: the recorded step; None once there is a profile.
        profile: its profile; None until a plan needs it.
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
    recorded: Recorded | None = None
    profile: Profile | None = None
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
            recorded=recorded,
            tight=recorded.sharded,
            stood=recorded.stood,
            before_bytes=max(0, *(unlike_bytes(each, recorded.stood) for each in (recorded.made, made))),
        )

    def after(self, made: Sequence[int]) -> Known:
        """Count what was `made` before such a step, sizes in bytes. Returns itself if as much is counted already."""
        before_bytes = unlike_bytes(made, self.stood)
        return replace(self, before_bytes=before_bytes) if before_bytes > self.before_bytes else self

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
        others: other kinds of steps that begin alike, with their profiles. The plan holds them to the budget too.
    """

    kind: Kind
    profile: Profile
    plan: Plan
    unfit: str = ""
    checks: ReplayChecks | None = None
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

    def keeping(self) -> int:
        """How many backward passes that keep their graph the plan counts on; O(saves)."""
        return max(sum(Passes(profile).of_step_keeping) for profile in self.profiles)

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


T = TypeVar("T", Known, Ready)


def covering(among: Iterable[T], batch: Batch, gradient_bytes: int) -> T | None:
    """Return the first that covers a step with this first batch and these gradients; None if none does."""
    return next((each for each in among if each.covers([batch], gradient_bytes)), None)
