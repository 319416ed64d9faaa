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
    """The statistics of a device's allocator.

    Attributes:
        allocated_bytes: bytes that are allocated now.
        peak_bytes: the most that were allocated at once since the statistics were reset.
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
        """What to call its memory in a sentence about a budget in percent."""

    @property
    def grain_bytes(self) -> int:
        """Its allocator rounds sizes up to multiples of this."""

    @property
    def number_bytes(self) -> int:
        """Bytes allocated for a Python number while an operator computes with it."""

    @property
    def margin(self) -> float:
        """The share of a budget that plans leave to the allocator."""

    @property
    def runs_at_once(self) -> bool:
        """Whether an operator is done when its call returns, so that the host's clock can time it."""

    @property
    def draws_inside_recurrent_layers(self) -> bool:
        """Whether recurrent layers draw their dropout from a random state that belongs to no generator."""

    @property
    def spills_to_host(self) -> bool:
        """Whether tensors can wait in the host's memory because the device has its own."""

    @property
    def generator_bytes(self) -> int:
        """Bytes that one state of its generator takes in the device's memory."""

    def total_bytes(self) -> int | None:
        """Return the size of its memory; None if it is not known."""

    def level(self) -> Level | None:
        """Return the statistics of its allocator; None if it keeps none."""

    def reset_peak(self) -> None:
        """Reset the peak in the allocator's statistics. They belong to the user, so only if the user asked for it."""

    def tape(self) -> AllocatorTape:
        """Return a tape of its allocations, not started yet; see `why_never`."""

    def clock(self) -> Clock:
        """Return a clock for what runs on it."""

    def lanes(self) -> Lanes | None:
        """Return what copies to the host and back beside the computing; None where nothing does."""

    def wait(self) -> None:
        """Wait until all work on it is done, and autograd's threads hold none of its results."""

    def settle(self, results: Iterable[torch.Tensor | None]) -> None:
        """Wait until autograd's own threads hold none of a backward's results any more."""

    def forget_workspaces(self) -> int:
        """Free the workspaces that libraries keep; return their bytes. Later allocations of them are on the tape."""

    def why_never(self) -> str:
        """Say why no step can ever be recorded on it in this process; empty if one can."""

    def why_not_now(self) -> str:
        """Say why no step can be recorded on it at this moment; empty if one can."""


def rounded(device: Device, size_bytes: int) -> int:
    """Return how many bytes the allocator of `device` hands out for a request of `size_bytes`."""
    return -(-size_bytes // device.grain_bytes) * device.grain_bytes
