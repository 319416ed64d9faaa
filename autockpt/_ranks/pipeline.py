"""Stages of a pipeline: each plans its own steps. If one cannot, all stages raise at the same place.

    stage 0    F F ·  B F B F B B  step │        forwards wait for the stage before, backwards for the one after
    stage 1      F B F B F B F B   step │        so no rank may wait or raise as a step begins

A rank whose step cannot begin as it should publishes its error and the number of the step, and runs that step spilled.
Earlier stages need gradients from that rank before their optimizers step, and later stages need inputs. So all know the
error by then, and raise it as their optimizers take that step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from torch import Tensor, nn

from .._torch import private
from ..solvers.errors import AutockptError
from .errors import error_of, plain_error


def stages_of(models: Iterable[nn.Module]) -> list[Any]:
    """Return the pipeline stages that this rank's models are, or are parts of."""
    own = {id(each) for each in models}
    return [each for each in private.stages() if any(id(part) in own for part in each.submod.modules())]


def arriving_at(stages: Iterable[Any]) -> list[Tensor]:
    """Return the buffers that receive gradients from later stages.

    They are allocated during the whole step. If the later stage is on this rank, its gradients take their place.
    """
    return [each for stage in stages for each in private.gradients_arriving(stage)]


def kept_by(stages: Iterable[Any]) -> list[Tensor]:
    """Return what stages keep after a step. It is freed before the next step's first forward."""
    stays = {private.storage_key(each) for each in arriving_at(stages)}
    kept = (each for stage in stages for each in private.kept_by_stage(stage))
    return [each for each in kept if private.storage_key(each) not in stays]


class Pipeline:
    """The ranks of the pipeline whose stages the models are, or are parts of. Does nothing without a pipeline.

    Attributes:
        there: whether the model is a stage.
        waits: whether some rank may have no plan yet.
        stages: those stages; none before the first forward.
    """

    def __init__(self) -> None:
        self.there = self.waits = self._looked = self._planned = False
        self._error: AutockptError | None = None
        self._begun = 0  # steps of this stage
        self.stages: list[Any] = []

    def asks_for_shapes(self, models: Iterable[nn.Module], root: nn.Module) -> bool:
        """Whether the forward that begins only asks a stage for the shapes of its outputs, and belongs to no step.

        Args:
            models: the model, or all of several.
            root: the one of them whose forward begins.
        """
        if not self._looked:
            self._looked = True
            self.stages = stages_of(models)
            if self.stages:
                self._open()
        asking = (each for each in self.stages if private.asks_for_shapes(each))
        return any(part is root for each in asking for part in each.submod.modules())

    def _open(self) -> None:
        members = private.ranks_in(self.stages[0].group)
        self._ranks, self._own, self._store = len(members), private.own_rank(), private.default_store()
        place = f"autockpt/pipeline {'-'.join(map(str, members))}"
        # Each rank counts its own pipelines. All ranks open equally many, so the place is the same.
        self._place = f"{place}/{self._store.add(f'{place}/opened by {self._own}', 1)}"
        self.there = self.waits = True

    def begins(self) -> None:
        """Note that a step begins."""
        self._begun += 1

    def fails(self, error: AutockptError) -> bool:
        """Say that a step fails on this rank. Return whether it must go on: other ranks wait for its outputs."""
        if self.waits:
            self._error = error
            if self._store.add(f"{self._place}/failed", 1) == 1:
                said = [self._own, self._begun, plain_error(error, "began a step")]
                self._store.set(f"{self._place}/error", msgspec.json.encode(said))
        return self.waits

    def planned(self) -> None:
        """Say that this rank has a plan."""
        if self.waits and not self._planned:
            self._planned = True
            self._store.add(f"{self._place}/planned", 1)

    def stepped(self) -> None:
        """Note that an optimizer has taken a step. If that step failed on a rank, all ranks know its error by now.

        Raises:
            AutockptError: the step has failed on a rank, or an earlier one.
        """
        if not self.waits:
            return
        self.waits = self._store.add(f"{self._place}/planned", 0) < self._ranks
        if self._error is not None:
            self.waits = False
            raise self._error
        if self._store.check([f"{self._place}/error"]):
            rank, number, said = msgspec.json.decode(self._store.get(f"{self._place}/error"))
            self.waits = number > self._begun  # a rank may be ahead, and raises with its own step
            if not self.waits:
                raise error_of(said, rank)
