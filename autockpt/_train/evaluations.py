"""Which forwards with gradients on belong to training steps: those that a backward follows.

E: a forward in eval mode, T: in training mode, B: a backward

an attack        E ── B ── E ── B ── T ── B ── optimizer │ E ── ...     a step like any other, recorded and planned
an evaluation    T ── B ── optimizer │ E ── E ── E ── ...     gradients were left on: later ones run as they come
a rollout        T │ T │ T │ ... ── T ── B ── optimizer       the same in training mode
a generator      T │ T │ T │ ...                              its body runs later: no backward starts at what it returns

When such a forward begins, nobody knows whether a backward will follow. So it counts as a step, held to the budget,
until `MOST_FORWARDS` of its kind had no backward. Once a backward reaches one, its kind counts again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from .._calls.values import tensors
from .batches.batch import Batch
from .deciding.state import MOST_TRIES
from .step import MOST_FORWARDS, StepUnderWay

MOST_KINDS = 64
"""How many kinds of such forwards are remembered."""


class Evaluations:
    """Counts the forwards that had no backward, by kind."""

    def __init__(self) -> None:
        self._alone: dict[object, int] = {}

    def apart(self, batch: Batch, step: StepUnderWay | None, *, evaluates: bool) -> bool:
        """Note that a forward begins; return whether it counts as part of no training step.

        Args:
            batch: its batch.
            step: the step under way. If a backward has reached it, its forwards were no evaluation.
            evaluates: whether the forward is in eval mode.
        """
        if not evaluates:
            late = bool(self._alone) and self._alone.get(batch.kind, 0) >= MOST_FORWARDS
            return late and not (step is not None and step.goes_on())
        if step is not None and step.backward:
            self.train(step.batches)
        return not self._counted(batch)

    def over(self, step: StepUnderWay) -> None:
        """Note that a step with a forward in training mode is over.

        Where no backward could start at what its forwards returned, it counts for several: none will come later either.
        """
        if step.backward:
            if self._alone:
                self.train(step.batches)
        elif step.runner.watches and not step.waits():
            for batch in step.batches:
                self._counted(batch, 1 if step.graphs.differentiable else MOST_FORWARDS // MOST_TRIES)

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

    def _counted(self, batch: Batch, number: int = 1) -> bool:
        """Count forwards of a kind; return whether that is below `MOST_FORWARDS`, so that they still count as steps."""
        found = self._alone.get(batch.kind, 0)
        if found < MOST_FORWARDS:
            if len(self._alone) >= MOST_KINDS:
                self._alone.clear()
            self._alone[batch.kind] = found + number
        return found < MOST_FORWARDS


def _comes(evaluations: Evaluations, batch: Batch, tell: Callable[[], None], gradients: object) -> None:
    evaluations.train([batch])
    tell()
