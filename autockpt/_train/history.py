"""What is known of a model's steps, and the plans that were made for them. Frozen: changing it returns a new `History`.

    steps ─▶ learning, following, knowing ─▶ known ─▶ planned ─▶ ready ─▶ current
             refusing, counting           ─▶ without_plans: plans are made anew

What is only counted from step to step is in `Surprises`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from .._batches.batch import Batch, Kind
from .._batches.headroom import roomy
from .._calls.anatomy import anatomy, changed
from .._optimizer.memory import OptimizerMemory
from .known import Known, Ready, covering

MOST_KINDS = 8
"""How many kinds of steps are remembered, and how many plans. The oldest are dropped first."""

MOST_ALIKE = 4
"""How many kinds may differ in nothing but whole numbers. Then those numbers are taken for counters, and ignored."""

MOST_UNPLANNED = 4
"""How many kinds are recorded before the first plan. Then a warning says that there is none yet."""


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
        """Remember a recorded step. It replaces an earlier one of its kind."""
        others = [each for each in self.known if each.kind != known.kind]
        kinds = (known, *others[: MOST_KINDS - 1])
        alike = [each for each in kinds if each.kind.without_numbers() == known.kind.without_numbers()]
        if len(alike) != MOST_ALIKE:
            return replace(self, known=kinds, given=False)
        largest = max(alike, key=lambda each: each.nodes)
        largest = replace(largest, kind=largest.kind.without_numbers())
        return replace(self, known=(largest,), numbers=False).without_plans()

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
