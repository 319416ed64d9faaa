"""The CPU: operators run synchronously, and its allocator does not round sizes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..._data.hardware.host import physical_bytes
from .base import Level
from .clock import Clock, HostClock
from .tape import AllocatorTape


class Cpu:
    """The host; see `Device`."""

    at = torch.device("cpu")
    name = "cpu"
    memory = "physical memory"
    grain_bytes = 1
    number_bytes = 12  # in its own type (8 bytes), and converted to that of the tensors (4)
    margin = 0.0
    runs_at_once = True
    draws_inside_recurrent_layers = False
    spills_to_host = False

    @property
    def generator_bytes(self) -> int:
        return torch.default_generator.get_state().nbytes

    def total_bytes(self) -> int | None:
        return physical_bytes()

    def level(self) -> Level | None:
        return None

    def reset_peak(self) -> None: ...

    def tape(self) -> AllocatorTape:
        return AllocatorTape(self.at)

    def clock(self) -> Clock:
        return HostClock()

    def lanes(self) -> None: ...

    def wait(self) -> None: ...

    def settle(self, results: Iterable[torch.Tensor | None]) -> None:
        """Do nothing: a backward on a CPU runs in the thread that asked for it."""

    def forget_workspaces(self) -> int:
        return 0

    def why_never(self) -> str:
        return ""

    def why_not_now(self) -> str:
        return ""
