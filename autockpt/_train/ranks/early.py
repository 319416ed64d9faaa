"""Replays that run while a stage of a pipeline waits for the gradient that their backward begins with.

this stage    F ── asks for the gradient ── replay ── waits ── B      the replay takes no time of the step's
the next one         F ─────── B ── sends the gradient
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from ..._calls.values import tensors
from ..._ranks.pipeline import Pipeline
from ..._run.frames.frame import Frame
from ..._torch import private

Waiting: TypeAlias = tuple[list[weakref.ref[Tensor]], weakref.ref[Frame]]


class EarlyReplays:
    """Replays the frames of one model's forwards as the stage begins to wait for their gradients.

    It keeps neither frames nor outputs alive. If a forward's outputs are not those of its stage, as where a hook
    replaces them, its frames are replayed in backward.

    Args:
        pipeline: the pipeline whose stages the model is, or is a part of.
    """

    __slots__ = ("__weakref__", "_pipeline", "_waiting")

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waiting: list[Waiting] = []

    def made(self, outputs: object, frames: Sequence[weakref.ref[Frame]]) -> None:
        """Note the outputs of a forward, and those of its frames whose replays may run early."""
        private.watch_waits(self)
        made = [weakref.ref(each) for each in tensors(outputs)]
        alive = [each for each in self._waiting if each[1]() is not None]
        self._waiting = [*alive, *((made, frame) for frame in frames)]

    def waits(self, arriving: Sequence[Tensor]) -> None:
        """Replay the frames of the microbatches whose gradients arrive in these tensors; errors as in backward."""
        awaiting = {id(each) for stage in self._pipeline.stages for each in private.outputs_awaiting(stage, arriving)}
        for made, frame in self._waiting if awaiting else ():
            alive = frame()
            if alive is not None and any(id(each()) in awaiting for each in made):
                alive.replay()

    def end(self) -> None:
        """Forget all frames: the step is over."""
        if self._waiting:
            self._waiting = []
            private.unwatch_waits(self)
