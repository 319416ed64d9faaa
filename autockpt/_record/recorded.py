"""What was recorded of a user's own training step, and its profile."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._calls.anatomy import Anatomy
from .._data.profile import Profile
from .._data.tables import Static
from .._optimizer.memory import OptimizerMemory
from .._ranks.refuse import COVERS_UNITS, IS_A_UNIT, ON_SEVERAL_RANKS
from .._tables.seconds import Seconds
from .._watch.marks import SeenStep
from ..solvers.units import format_bytes
from .build import build_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded step.

    Attributes:
        run: what was seen of the step.
        seconds: its times, as measured by the recorded step itself.
        static: bytes allocated before it, and bytes that it leaves behind, without optimizer state.
        anatomy: which modules the model had as it began.
        reached: which trainable parameters had a gradient when it was over, by index.
        uncounted_bytes: bytes that were allocated as it began and do not count: a teacher, an average of the weights.
            None if that is not known, or if the device's statistics make them count.
        stood: sizes of tensors that the loop made before its forwards, and that `run` or `static` count: those freed
            in the step, and the arguments of later forwards.
        made: sizes of what the loop allocated after it, before the next step.
    """

    run: SeenStep
    seconds: Seconds
    static: Static
    anatomy: Anatomy
    reached: frozenset[int]
    uncounted_bytes: int | None = None
    stood: tuple[int, ...] = ()
    made: tuple[int, ...] = ()

    @property
    def operators(self) -> list[tuple[str, str]]:
        """The name of each operator that a replay might run, and the class of the module that called it."""
        calls = self.run.calls
        around = {number for number, call in enumerate(calls) if COVERS_UNITS in call.reasons}
        ops = (op for op in self.run.ops if op.call not in around)
        return [(op.name, calls[op.call].class_name if op.call >= 0 else "") for op in ops]

    @property
    def speaks(self) -> bool:
        """Whether replays of its calls run collectives: they do if functions are given DTensors."""
        return any(function.unreadable == ON_SEVERAL_RANKS for function in self.run.functions)

    @property
    def sharded(self) -> bool:
        """Whether parameters are sharded over ranks, so that no larger step can be predicted."""
        return self.speaks or any(call.alone == IS_A_UNIT for call in self.run.calls)

    @property
    def backwards(self) -> int:
        """How many backward passes it had."""
        return 1 + sum(mark.kind == "backward_again" for mark in self.run.marks.values())

    def uncounted(self) -> str:
        """Say what was allocated as it began and does not count, for the end of a sentence; empty if not known."""
        if self.uncounted_bytes is None:
            return ""
        return f", beside {format_bytes(self.uncounted_bytes)} of tensors that are no part of it and do not count"

    def profile(
        self, model: torch.nn.Module, device: torch.device, seconds: Seconds, optimizer: OptimizerMemory
    ) -> Profile:
        """Make the profile.

        Args:
            model: the model.
            device: the device that it trains on.
            seconds: the times of a plain step.
            optimizer: what the optimizers of this step need.
        """
        return build_profile(model, device, self.run, seconds, optimizer=optimizer, static=self.static, notes=())
