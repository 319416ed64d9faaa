"""What is known of one kind of step: its recording, and a plan for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .._data.plan import Plan
from .._data.profile import Profile
from .._record.in_place import Recorded
from .._record.optimizer import Optimizers
from .batch import Batch, Kind
from .frames import Nets


@dataclass(slots=True, kw_only=True)
class Known:
    """A kind of step that was recorded.

    Attributes:
        kind: the kind.
        nodes: how many nodes of autograd its forwards made.
        backwards: how many backward passes it had.
        reached: which of the trainable parameters get a gradient, by their number.
        came_bytes: what the loop makes before such a step and holds in it: since the step before, or longer ago.
        recorded: what it was, until there is a profile.
        profile: of it, once it is wanted.
        tight: whether no plan holds a larger step to the budget.
        follows: whether steps that begin otherwise were recorded before it: what stood as it began and is gone by the
            time of its plan was then made by the loop.
    """

    kind: Kind
    nodes: int = 0
    backwards: int = 1
    reached: frozenset[int] = frozenset()
    came_bytes: int = 0
    recorded: Recorded | None = None
    profile: Profile | None = None
    tight: bool = False
    follows: bool = False

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether a step that has made these forwards so far, and began with these gradients, is covered."""
        return self.kind.covers(batches, gradient_bytes)

    def take(self, profile: Profile) -> None:
        """Let the profile stand for the recording: it takes less."""
        if self.follows and self.recorded is not None:
            self.came_bytes = max(self.came_bytes, self.recorded.gone_bytes)
        self.profile, self.recorded = profile, None

    def begins_as(self, batch: Batch) -> bool:
        """Whether a step that begins so makes the same first forward, whatever its sizes."""
        return self.kind.batches[0].covers(batch, sizes=False)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands in the steps that a plan is for, beside what one forward and backward tell.

    Attributes:
        gradients: whether such a step begins with gradients, to which its own are added.
        outputs: whether outputs are held until backward is over.
        optimizer: what trains the model; None where nobody told, and none has stepped.
    """

    gradients: bool = True
    outputs: bool = True
    optimizer: Optimizers | None = None


T = TypeVar("T", Known, Ready)


def covering(among: Iterable[T], batch: Batch, gradient_bytes: int) -> T | None:
    """The first whose kind covers a step that begins so."""
    return next((each for each in among if each.covers([batch], gradient_bytes)), None)
