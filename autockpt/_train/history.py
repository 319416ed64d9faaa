"""What is known of a model's steps and of the plans that were made for them: frozen, so that deciding is a table.

    steps ─▶ learning, following, timed ─▶ known ─▶ planned ─▶ ready ─▶ current
             refusing, counting, growing ─▶ without plans: they are made anew

Each method returns another history. What is counted step by step and decides nothing by itself is in `Surprises`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .._batches.batch import Batch, Kind
from .._batches.headroom import roomy
from .._optimizer.memory import OptimizerMemory
from .known import Known, Ready, covering

MOST_KINDS = 8
"""Kinds of steps that are remembered, and plans; the oldest go first."""

MOST_ALIKE = 4
"""Kinds that differ in nothing but whole numbers; from then on those are taken to count something."""

MOST_UNPLANNED = 4
"""Kinds that are recorded before a plan; more is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known.

    Attributes:
        known: kinds of steps that were recorded, the newest first.
        ready: plans that were made for them, the newest first.
        current: the one that is on the model.
        numbers: whether whole numbers among the arguments make a kind of step.
        slower: a timed step over what its recording told of seconds; None before one was timed.
        error_bytes: by how much measured steps stood above what was predicted without it.
        beside_bytes: of what stood beside the step for which the newest plan is, where its device tells.
        given: whether what is known of steps is that of a batch that was given before any.
        refused: calls that cannot be replayed, by key with the reason, beside those of which profiles know.
        counted: what optimizers need, in the newest plan; None before the first.
        stepped: whether they had taken steps then.
        all_reached: whether they train more than recorded steps reached, as experts do.
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
        """Whether seconds are known."""
        return self.slower is not None

    @property
    def late(self) -> bool:
        """Whether so many steps were recorded that there should be a plan."""
        return self.current is None and len(self.known) >= MOST_UNPLANNED

    def has_met(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether a step was recorded that made these forwards first, whatever their sizes."""
        return any(each.kind.covers(batches, gradient_bytes, sizes=False) for each in self.known)

    def recording(self, batch: Batch, gradient_bytes: int) -> Known | None:
        """Return the recording that covers a step that begins so, or else does with headroom."""
        roomy = (each for each in self.known if self.roomy(each).covers([batch], gradient_bytes))
        return covering(self.known, batch, gradient_bytes) or next(roomy, None)

    def plan_for(self, batch: Batch, gradient_bytes: int) -> Ready | None:
        """Return the plan for a step that begins so: the one that is on the model, where that can stay."""
        if self.current is not None and self.current.covers([batch], gradient_bytes):
            return self.current
        return covering(self.ready, batch, gradient_bytes)

    def roomy(self, known: Known) -> Kind:
        """Return a kind with headroom where recorded sizes vary."""
        return known.kind if known.tight else roomy(known.kind, [each.kind for each in self.known])

    def learning(self, known: Known) -> History:
        """Remember a recorded step, in the place of another of its kind."""
        others = [each for each in self.known if each.kind != known.kind]
        kinds = (known, *others[: MOST_KINDS - 1])
        alike = [each for each in kinds if each.kind.without_numbers() == known.kind.without_numbers()]
        if len(alike) != MOST_ALIKE:
            return replace(self, known=kinds, given=False)
        largest = max(alike, key=lambda each: each.nodes)
        largest = replace(largest, kind=largest.kind.without_numbers())
        return replace(self, known=(largest,), numbers=False).without_plans()

    def following(self, batch: Batch, gradient_bytes: int, made: Sequence[int]) -> History:
        """Count what the loop `made`, sizes, before a step that begins so, in steps of its kind."""
        known = covering(self.known, batch, gradient_bytes)
        if known is None or (after := known.after(made)) is known:
            return self
        return self.knowing(known, after).without_plans()

    def knowing(self, known: Known, more: Known) -> History:
        """Know `more` of a kind of step."""
        return replace(self, known=tuple(more if each is known else each for each in self.known))

    def refusing(self, faults: Mapping[str, str]) -> History:
        """Count on no replay of these calls, by key with the reason."""
        return replace(self, refused={**self.refused, **faults}).without_plans()

    def counting(self, error_bytes: int) -> History:
        """Count what a step was measured to hold above the predicted peak of the plan that is on."""
        return replace(self, error_bytes=self.error_bytes + error_bytes).without_plans()

    def planned(self, ready: Ready) -> History:
        """Have a plan."""
        return replace(self, ready=(ready, *self.ready[: MOST_KINDS - 1]))

    def without_plans(self) -> History:
        """Have plans made anew."""
        return replace(self, ready=(), current=None)
