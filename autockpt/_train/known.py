"""What is known of one kind of step: its recording, and a plan for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from .._batches.batch import Batch, Kind
from .._compare.checks import ReplayChecks
from .._data.plan import Plan
from .._data.profile import Profile
from .._index.passes import Passes
from .._optimizer.memory import Optimizers
from .._record.prelude import unlike_bytes
from .._record.recorded import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A kind of step that was recorded.

    Attributes:
        kind: the kind.
        nodes: how many nodes of autograd its forwards made.
        backwards: how many backward passes it had.
        keeping: how many of them kept their graph.
        reached: which of the trainable parameters get a gradient, by their number.
        recorded: what it was, until there is a profile.
        profile: of it, once it is wanted.
        tight: whether no plan holds a larger step to the budget, or no larger step can be foretold.
        stood: sizes of what was there before the recorded step and counts.
        before_bytes: of what else the loop makes before such a step, which stands in all of it.
    """

    kind: Kind
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

        What was made after it is as much as is made before it, or what was `made` then; sizes.
        """
        return cls(
            kind=kind,
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
        """Return it with what was `made` before such a step, sizes, where that is more than is counted; else itself."""
        before_bytes = unlike_bytes(made, self.stood)
        return replace(self, before_bytes=before_bytes) if before_bytes > self.before_bytes else self

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether a step that has made these forwards so far, and began with these gradients, is covered."""
        return self.kind.covers(batches, gradient_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What stands in the steps that a plan is for, beside what one forward and backward tell.

    Attributes:
        gradients: whether such a step begins with gradients, to which its own are added.
        outputs: whether outputs are held until backward is over.
        optimizer: what trains the model; None where nobody told, and none has stepped.
    """

    gradients: bool = True
    outputs: bool = True
    optimizer: Optimizers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A plan, and the kind of step that it holds to the budget.

    Attributes:
        kind: the kind.
        profile: of such a step.
        plan: the plan.
        unfit: why it does not hold the step to the budget, where no plan does; else empty.
        checks: compares its replays.
        others: kinds of steps that begin alike, and that the plan holds to the budget as well, each with its profile.
    """

    kind: Kind
    profile: Profile
    plan: Plan
    unfit: str = ""
    checks: ReplayChecks | None = None
    others: tuple[tuple[Kind, Profile], ...] = ()

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether it holds a step to the budget that has made these forwards so far and began with these gradients."""
        return self.kind.covers(batches, gradient_bytes) or any(
            kind.covers(batches, gradient_bytes) for kind, _ in self.others
        )

    @property
    def profiles(self) -> list[Profile]:
        """Those of all steps that it holds to the budget."""
        return [self.profile, *(profile for _, profile in self.others)]

    @property
    def begin_bytes(self) -> int:
        """What stands as such a step begins, its gradients apart, predicted."""
        return self.profile.static.total_bytes - self.profile.static.gradient_bytes

    @property
    def backwards(self) -> int:
        """On how many backward passes it counts."""
        return 1 + max(len(profile.backward_ticks) for profile in self.profiles)

    def keeping(self) -> int:
        """On how many backward passes it counts that keep their graph; O(saves)."""
        return max(sum(Passes(profile).keeping) for profile in self.profiles)

    @property
    def calls(self) -> dict[str, int]:
        """How often a step calls each module at most, by name."""
        found: dict[str, int] = {}
        for call in (call for profile in self.profiles for call in profile.calls):
            found[call.name] = max(found.get(call.name, 0), call.occurrence + 1)
        return found

    def standing(self, optimizer: Optimizers | None) -> LoopState:
        """Say what stands in the steps that it is for, which this `optimizer` trains."""
        outputs = self.profile.holds_outputs
        return LoopState(gradients=self.kind.gradient_bytes > 0, outputs=outputs, optimizer=optimizer)


T = TypeVar("T", Known, Ready)


def covering(among: Iterable[T], batch: Batch, gradient_bytes: int) -> T | None:
    """The first whose kind covers a step that begins so."""
    return next((each for each in among if each.covers([batch], gradient_bytes)), None)
