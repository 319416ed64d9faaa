"""What the library asks of a kind of device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from .clock import Clock
from .lanes import Lanes
from .tape import AllocatorTape


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a device's allocator says of itself.

    Attributes:
        allocated_bytes: what is handed out now.
        peak_bytes: the most that was handed out at once, since the statistics were reset.
    """

    allocated_bytes: int
    peak_bytes: int


class Device(Protocol):
    """One device, as the rest of the library sees it: `Cpu`, `Cuda` or `Other`."""

    @property
    def at(self) -> torch.device:
        """The device, as torch names it."""

    @property
    def name(self) -> str:
        """What profiles and reports call it."""

    @property
    def memory(self) -> str:
        """What its memory is called in words, where a budget is a share of it."""

    @property
    def grain_bytes(self) -> int:
        """Its allocator hands out multiples of this."""

    @property
    def number_bytes(self) -> int:
        """What a Python number takes while an operator computes with it."""

    @property
    def margin(self) -> float:
        """Share of a budget that is left to the allocator."""

    @property
    def runs_at_once(self) -> bool:
        """Whether an operator is done when its call returns, so that the host's clock tells its seconds."""

    @property
    def draws_inside_recurrent_layers(self) -> bool:
        """Whether recurrent layers draw their dropout from a state that no generator shows."""

    @property
    def spills_to_host(self) -> bool:
        """Whether the host's memory is room beside the device's own."""

    @property
    def generator_bytes(self) -> int:
        """What a state of its generator takes from its own memory."""

    def total_bytes(self) -> int | None:
        """Return the size of its memory; None where nobody says."""

    def level(self) -> Level | None:
        """Return what its allocator says of itself; None where it keeps no statistics."""

    def reset_peak(self) -> None:
        """Begin the statistics of the peak anew: they are the user's, so only where the user asked for it."""

    def tape(self) -> AllocatorTape:
        """Return a tape of its allocations, not begun; see `why_never`."""

    def clock(self) -> Clock:
        """Return a clock of what runs on it."""

    def lanes(self) -> Lanes | None:
        """Return what copies to the host and back beside the computing; None where nothing does."""

    def wait(self) -> None:
        """Wait until all that was asked of it is done, and what that held is let go of."""

    def settle(self, results: Iterable[torch.Tensor | None]) -> None:
        """Wait until autograd's own threads have let go of a backward's results."""

    def forget_workspaces(self) -> int:
        """Have libraries give back the workspaces that they keep; return their bytes. A tape sees them taken then."""

    def why_never(self) -> str:
        """Say why no step can be recorded on it, as it is set up; empty where one can."""

    def why_not_now(self) -> str:
        """Say why no step can be recorded on it at this moment; empty where one can."""


def rounded(device: Device, size_bytes: int) -> int:
    """Return what the allocator of `device` hands out for so many bytes."""
    return -(-size_bytes // device.grain_bytes) * device.grain_bytes
