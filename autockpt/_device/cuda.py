"""A CUDA device: it works behind the host, and its caching allocator hands out blocks and keeps statistics.

What ROCm's build of torch calls ``cuda`` is one too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import cast

import torch

from .. import _torch_private as private
from .._data.devices import MARGIN
from .base import Level
from .clock import Clock
from .lanes import Lanes
from .tape import AllocatorTape

UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""A variable in the environment with which torch's allocator neither caches nor reports."""

SETTLES_SECONDS = 1.0
"""How long autograd's thread may take to let go of results: it needs the interpreter for that, 4 ms were seen."""


class Cuda:
    """A CUDA device; see `Device`."""

    memory = "device memory"
    grain_bytes = 512  # and more, where the allocator does not split a block that it has
    number_bytes = 0
    margin = MARGIN
    runs_at_once = False
    draws_inside_recurrent_layers = True  # cuDNN's, which is seeded once
    spills_to_host = True
    generator_bytes = 0  # states lie on the host

    def __init__(self, at: torch.device) -> None:
        self.at = at

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.at) if torch.cuda.is_initialized() else self.at.type

    def total_bytes(self) -> int | None:
        return int(torch.cuda.get_device_properties(self.at).total_memory)

    def level(self) -> Level | None:
        # As torch's own functions do, but once, and not made flat and sorted: every planned step asks.
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
        """Wait, also for autograd's thread of the device, which holds a backward's last gradients until its next one.

        So it gets a backward of one number to do.
        """
        with torch.inference_mode(False), torch.enable_grad(), private.outside_modes():
            number = torch.zeros((), device=self.at, requires_grad=True)
            self.settle(torch.autograd.grad(number.view_as(number), number))
        torch.cuda.synchronize(self.at)

    def settle(self, results: Iterable[torch.Tensor | None]) -> None:
        """Wait until a thread of autograd's, in which a backward ran, holds none of its results any more."""
        held, until = [each for each in results if each is not None], time.monotonic() + SETTLES_SECONDS
        while any(map(private.held_elsewhere, held)) and time.monotonic() < until:
            time.sleep(0.001)  # lets go of the interpreter, which that thread waits for

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
    """Events in the current stream: the device's own time, read only after the run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stamp(self) -> object:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def get_ahead(self, seconds: float) -> None:
        private.sleep_on(self._device, seconds)

    def seconds(self, stamps: list[object]) -> list[float]:
        events = cast("list[torch.cuda.Event]", stamps)
        torch.cuda.synchronize(self._device)
        return [max(events[0].elapsed_time(event), 0.0) / 1e3 for event in events]
