"""Which forwards in eval mode with gradients on belong to a training step: those that a backward follows.

E: a forward in eval mode, T: in training mode, B: a backward

an attack        E ── B ── E ── B ── T ── B ── optimizer │ E ── ...     a step like any other, recorded and planned
an evaluation    T ── B ── optimizer │ E ── E ── E ── ...     gradients were left on: later ones run as they come

When such a forward begins, nobody knows whether a backward will follow. So it counts as a step, held to the budget,
until `MOST_FORWARDS` of its kind had no backward. Once a backward reaches one, its kind counts again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from .._batches.batch import Batch
from .._calls.values import tensors
from .step import MOST_FORWARDS, StepUnderWay

MOST_KINDS = 64
"""How many kinds of such forwards are remembered."""


class Evaluations:
    """Counts the forwards in eval mode that had no backward, by kind."""

    def __init__(self) -> None:
        self._alone: dict[object, int] = {}

    def trains(self, batch: Batch, step: StepUnderWay | None) -> bool:
        """Note that a forward in eval mode begins; return whether it counts as part of a training step.

        Args:
            batch: its batch.
            step: the step under way. If a backward has reached it, its forwards were no evaluation.
        """
        if step is not None and step.backward:
            self.train(step.batches)
        found = self._alone.get(batch.kind, 0)
        if found < MOST_FORWARDS:
            if len(self._alone) >= MOST_KINDS:
                self._alone.clear()
            self._alone[batch.kind] = found + 1
        return found < MOST_FORWARDS

    def train(self, batches: Iterable[Batch]) -> None:
        """Note that a backward has reached forwards with batches like these."""
        for batch in batches:
            self._alone.pop(batch.kind, None)

    def watch(self, outputs: object, batch: Batch, tell: Callable[[], None]) -> None:
        """Call `tell` if a backward reaches a forward that belongs to no step."""
        hook = functools.partial(_comes, self, batch, tell)
        for tensor in tensors(outputs):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(hook)


def _comes(evaluations: Evaluations, batch: Batch, tell: Callable[[], None], gradients: object) -> None:
    evaluations.train([batch])
    tell()
