"""What is known of one kind of step: its recording, and a plan for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .._data.plan import Plan
from .._data.profile import Profile
from .._frames import Nets
from .._record.optimizer import Optimizers
from .._record.prelude import unlike_bytes
from .._record.recorded import Recorded
from .batch import Batch, Kind


@dataclass(slots=True, kw_only=True)
class Known:
    """A kind of step that was recorded.

    Attributes:
        kind: the kind.
        nodes: how many nodes of autograd its forwards made.
        backwards: how many backward passes it had.
        reached: which of the trainable parameters get a gradient, by their number.
        recorded: what it was, until there is a profile.
        profile: of it, once it is wanted.
        tight: whether no plan holds a larger step to the budget.
        stood: sizes of what was there before the recorded step and counts.
        before_bytes: of what else the loop makes before such a step, which stands in all of it.
    """

    kind: Kind
    nodes: int = 0
    backwards: int = 1
    reached: frozenset[int] = frozenset()
    recorded: Recorded | None = None
    profile: Profile | None = None
    tight: bool = False
    stood: tuple[int, ...] = ()
    before_bytes: int = 0

    @classmethod
    def of(cls, kind: Kind, nodes: int, recorded: Recorded, made: Sequence[int]) -> Known:
        """Return what is known of a step that was just recorded.

        What was made after it is as much as is made before it, or what was `made` then; sizes.
        """
        known = cls(
            kind=kind,
            nodes=nodes,
            backwards=recorded.backwards,
            reached=recorded.reached,
            recorded=recorded,
            stood=recorded.stood,
        )
        known.follows(recorded.made)
        known.follows(made)
        return known

    def follows(self, made: Sequence[int]) -> bool:
        """Note what was `made` before such a step, sizes; return whether that is more than is counted."""
        bytes_now = max(self.before_bytes, unlike_bytes(made, self.stood))
        before, self.before_bytes = self.before_bytes, bytes_now
        return bytes_now > before

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
        plan: the plan.
        begin_bytes: what stands as such a step begins, its gradients apart, predicted.
        unfit: why it does not hold the step to the budget, where no plan does; else empty.
        calls: how often a step of the kind calls each module, by name.
        nets: what compares its replays.
        backwards: on how many backward passes it counts.
        holds_outputs: whether the recorded step held its outputs after the loss was there.
        others: kinds of steps that begin alike, and that the plan holds to the budget as well.
    """

    kind: Kind
    plan: Plan
    calls: Mapping[str, int]
    begin_bytes: int = 0
    unfit: str = ""
    nets: Nets | None = None
    backwards: int = 1
    holds_outputs: bool = True
    others: tuple[Kind, ...] = ()

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether it holds a step to the budget that has made these forwards so far and began with these gradients."""
        return any(kind.covers(batches, gradient_bytes) for kind in (self.kind, *self.others))

    def standing(self, optimizer: Optimizers | None) -> LoopState:
        """Say what stands in the steps that it is for, which this `optimizer` trains."""
        return LoopState(gradients=self.kind.gradient_bytes > 0, outputs=self.holds_outputs, optimizer=optimizer)


T = TypeVar("T", Known, Ready)


def covering(among: Iterable[T], batch: Batch, gradient_bytes: int) -> T | None:
    """The first whose kind covers a step that begins so."""
    return next((each for each in among if each.covers([batch], gradient_bytes)), None)
