"""Which forwards in eval mode, with gradients on, belong to steps: those that a backward follows.

an attack        E ── B ── E ── B ── T ── B ── optimizer │ E ── ...     steps as all others, recorded and planned
an evaluation    T ── B ── optimizer │ E ── E ── E ── ...     gradients were left on: after some they run as they come

Nobody can tell beforehand. So they are steps, within the budget, until so many of a kind came alone; and are again as
soon as a backward comes to one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from .._batches.batch import Batch
from .._calls.values import tensors
from .step import MOST_FORWARDS, StepUnderWay

MOST_KINDS = 64
"""Kinds of such forwards that are remembered."""


class Evaluations:
    """Counts the forwards in eval mode to which no backward came, by kind."""

    def __init__(self) -> None:
        self._alone: dict[object, int] = {}

    def trains(self, batch: Batch, step: StepUnderWay | None) -> bool:
        """Note that such a forward begins; return whether it belongs to a step.

        Args:
            batch: its batch.
            step: that is under way; where a backward came to it, its forwards were none of an evaluation.
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
        """Note that a backward came to forwards like these."""
        for batch in batches:
            self._alone.pop(batch.kind, None)

    def watch(self, outputs: object, batch: Batch, tell: Callable[[], None]) -> None:
        """Be told where a backward comes to a forward that belongs to no step."""
        hook = functools.partial(_comes, self, batch, tell)
        for tensor in tensors(outputs):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(hook)


def _comes(evaluations: Evaluations, batch: Batch, tell: Callable[[], None], gradients: object) -> None:
    evaluations.train([batch])
    tell()
