"""A CUDA device: it runs asynchronously to the host, and its caching allocator hands out blocks and keeps statistics.

What ROCm's build of torch calls ``cuda`` is one too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import cast

import torch

from ..._data.hardware.devices import MARGIN
from .. import private
from .base import Level
from .clock import Clock
from .lanes import Lanes
from .tape import AllocatorTape

UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""An environment variable. If it is set, torch's allocator neither caches nor reports allocations."""

SETTLES_SECONDS = 1.0
"""How long to wait at most for autograd's thread to release results. It needs the GIL for that; 4 ms were seen."""


class Cuda:
    """A CUDA device; see `Device`."""

    memory = "device memory"
    grain_bytes = 512  # a request gets more if the allocator does not split a larger cached block
    number_bytes = 0
    margin = MARGIN
    runs_at_once = False
    draws_inside_recurrent_layers = True  # from cuDNN's dropout state, which is seeded once
    spills_to_host = True
    generator_bytes = 0  # its states are host tensors

    def __init__(self, at: torch.device) -> None:
        self.at = at

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.at) if torch.cuda.is_initialized() else self.at.type

    def total_bytes(self) -> int | None:
        return int(torch.cuda.get_device_properties(self.at).total_memory)

    def level(self) -> Level | None:
        # One call in place of two of torch's, each of which also flattens and sorts: every planned step asks.
        found = torch.cuda.memory_stats_as_nested_dict(self.at).get("allocated_bytes", {}).get("all", {})
        return Level(allocated_bytes=found.get("current", 0), peak_bytes=found.get("peak", 0))

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.at)

    def tape(self) -> AllocatorTape:
        return AllocatorTape(self.at, grain_bytes=self.grain_bytes)

    def clock(self) -> Clock:
        return EventClock(self.at)

    def lanes(self) -> Lanes:
        return Lanes(self.at)

    def wait(self) -> None:
        """Wait for the device, and until autograd's thread for it holds no gradients.

        That thread holds the last gradients of a backward until its next one. So it gets a backward of one number.
        """
        with torch.inference_mode(False), torch.enable_grad(), private.outside_modes():
            number = torch.zeros((), device=self.at, requires_grad=True)
            self.settle(torch.autograd.grad(number.view_as(number), number))
        torch.cuda.synchronize(self.at)

    def settle(self, results: Iterable[torch.Tensor | None]) -> None:
        """Wait until autograd's thread, which ran a backward, holds none of its results any more."""
        held, until = [each for each in results if each is not None], time.monotonic() + SETTLES_SECONDS
        while any(map(private.held_elsewhere, held)) and time.monotonic() < until:
            time.sleep(0.001)  # releases the GIL, which that thread waits for

    def forget_workspaces(self) -> int:
        self.wait()
        before_bytes = torch.cuda.memory_allocated(self.at)
        private.forget_workspaces()
        return max(before_bytes - torch.cuda.memory_allocated(self.at), 0)  # other threads may allocate

    def why_never(self) -> str:
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            return (
                f"the allocator of {self.at} is {backend}, which reports no allocations, so what a step holds cannot "
                "be seen. Train with torch's own: PYTORCH_CUDA_ALLOC_CONF without backend:cudaMallocAsync."
            )
        if UNCACHED in os.environ:
            return f"{UNCACHED} is set, with which {self.at} reports no allocations. Unset it."
        return ""

    def why_not_now(self) -> str:
        if not private.captures_graph():
            return ""
        return "a CUDA graph is being captured, and no step can be recorded inside it. Train three steps before."


class EventClock(Clock):
    """Reads the device's own time: events in the current stream, which are evaluated only after the run."""

    behind = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stamp(self) -> object:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def drain(self) -> None:
        torch.cuda.synchronize(self._device)

    def get_ahead(self, seconds: float) -> None:
        private.sleep_on(self._device, seconds)

    def seconds(self, stamps: list[object]) -> list[float]:
        events = cast("list[torch.cuda.Event]", stamps)
        torch.cuda.synchronize(self._device)
        return [max(events[0].elapsed_time(event), 0.0) / 1e3 for event in events]
