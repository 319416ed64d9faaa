"""Stages of a pipeline: each plans its own steps, and where one cannot all hear of it at the same place.

    stage 0    F F ·  B F B F B B  step │        forwards wait for the stage before, backwards for the one behind
    stage 1      F B F B F B F B   step │        so nobody may wait as a step begins, or raise there

What a rank fails with it says as its step begins, and that step goes on, spilled. By the time that the optimizer steps
all have heard of it: earlier stages with their gradients, later ones with what they were given. There all raise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from torch import Tensor, nn

from .. import _torch_private as private
from ..solvers.errors import AutockptError
from .errors import error_of, plain_error


def stages_of(models: Iterable[nn.Module]) -> list[Any]:
    """Return the stages of a pipeline that models of a rank are, or that these are parts of."""
    own = {id(each) for each in models}
    return [each for each in private.stages() if any(id(part) in own for part in each.submod.modules())]


def arriving_gradients(models: Iterable[nn.Module]) -> list[Tensor]:
    """Return where the gradients arrive that later stages of a pipeline send: they stand in all of a step."""
    return [each for stage in stages_of(models) for each in private.gradients_arriving(stage)]


def kept_outputs(models: Iterable[nn.Module]) -> list[Tensor]:
    """Return what a last stage keeps of a step: it is gone before the first forward of the next."""
    return [each for stage in stages_of(models) for each in private.kept_outputs(stage)]


class Pipeline:
    """The ranks of a pipeline, a stage of which a model or a part of it is, or several of which models are; or none.

    Attributes:
        there: whether the model is a stage.
        waits: whether not all ranks are known to have a plan.
    """

    def __init__(self) -> None:
        self.there = self.waits = self._looked = self._planned = False
        self._error: AutockptError | None = None
        self._stages: list[Any] = []

    def asks_for_shapes(self, models: Iterable[nn.Module], root: nn.Module) -> bool:
        """Whether a forward that begins is a pipeline's that only asks a stage for shapes, and no part of a step.

        Args:
            models: the model, or all of several.
            root: the one of them whose forward begins.
        """
        if not self._looked:
            self._looked = True
            self._stages = stages_of(models)
            if self._stages:
                self._open()
        asking = (each for each in self._stages if private.asks_for_shapes(each))
        return any(part is root for each in asking for part in each.submod.modules())

    def _open(self) -> None:
        members = private.ranks_in(self._stages[0].group)
        self._ranks, self._own, self._store = len(members), private.own_rank(), private.default_store()
        place = f"autockpt/pipeline {'-'.join(map(str, members))}"
        # Each rank counts for itself, and they open as many.
        self._place = f"{place}/{self._store.add(f'{place}/opened by {self._own}', 1)}"
        self.there = self.waits = True

    def fails(self, error: AutockptError) -> bool:
        """Say that this rank cannot plan; return whether the step is to go on, since others wait for what it makes."""
        if self.waits:
            self._error = error
            if self._store.add(f"{self._place}/failed", 1) == 1:
                said = [self._own, plain_error(error, "planned")]
                self._store.set(f"{self._place}/error", msgspec.json.encode(said))
        return self.waits

    def planned(self) -> None:
        """Say that this rank has a plan."""
        if self.waits and not self._planned:
            self._planned = True
            self._store.add(f"{self._place}/planned", 1)

    def stepped(self) -> None:
        """Note that an optimizer has taken a step, by which all know what any rank failed with.

        Raises:
            AutockptError: a rank cannot plan.
        """
        if not self.waits:
            return
        self.waits = self._store.add(f"{self._place}/planned", 0) < self._ranks
        if self._error is not None or self._store.check([f"{self._place}/error"]):
            self.waits = False
            if self._error is not None:
                raise self._error
            rank, said = msgspec.json.decode(self._store.get(f"{self._place}/error"))
            raise error_of(said, rank)
