"""What a recorded step of the user's was, and the profile that it makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._data.profile import Profile
from .._data.tables import Static
from .._optimizer.memory import OptimizerMemory
from .._ranks.refuse import COVERS_UNITS, IS_A_UNIT, ON_SEVERAL_RANKS
from .._watch.marks import SeenStep
from ..solvers.units import format_bytes
from .build import build_profile
from .timing import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a recorded step was.

    Attributes:
        run: what was seen of it.
        seconds: when what happened, as the recorded step itself tells.
        static: what is there before it, and what it leaves to the next one, but for the state of optimizers.
        reached: which of the trainable parameters had a gradient when it was over, by their number.
        uncounted_bytes: of what else stood when it began and is in none of this: a teacher, an average of the weights.
            None where nobody can tell, and where the device's statistics do, by which it counts.
        stood: sizes of what was there before it and counts: what went in it, what later forwards were given.
        made: sizes of what was made since, before the next step.
    """

    run: SeenStep
    seconds: Seconds
    static: Static
    reached: frozenset[int]
    uncounted_bytes: int | None = None
    stood: tuple[int, ...] = ()
    made: tuple[int, ...] = ()

    @property
    def operators(self) -> list[tuple[str, str]]:
        """Name of each operator that a replay might run, and class of the module whose call ran it."""
        calls = self.run.calls
        around = {number for number, call in enumerate(calls) if COVERS_UNITS in call.reasons}
        ops = (op for op in self.run.ops if op.call not in around)
        return [(op.name, calls[op.call].class_name if op.call >= 0 else "") for op in ops]

    @property
    def speaks(self) -> bool:
        """Whether replays of its calls run collectives, as they do where functions are given DTensors."""
        return any(function.unreadable == ON_SEVERAL_RANKS for function in self.run.functions)

    @property
    def sharded(self) -> bool:
        """Whether parameters lie on several ranks, so that no larger step can be foretold."""
        return self.speaks or any(call.alone == IS_A_UNIT for call in self.run.calls)

    @property
    def backwards(self) -> int:
        """How many backward passes it had."""
        return 1 + sum(mark.kind == "backward_again" for mark in self.run.marks.values())

    def uncounted(self) -> str:
        """Say what else stood when it began, for the end of a sentence; empty where nobody can tell."""
        if self.uncounted_bytes is None:
            return ""
        return f", beside {format_bytes(self.uncounted_bytes)} of tensors that are no part of it and do not count"

    def profile(
        self, model: torch.nn.Module, device: torch.device, seconds: Seconds, optimizer: OptimizerMemory
    ) -> Profile:
        """Make the profile.

        Args:
            model: the model.
            device: where it trains.
            seconds: when what happened.
            optimizer: what the optimizers need whose steps belong to it.
        """
        return build_profile(model, device, self.run, seconds, optimizer=optimizer, static=self.static, notes=())
