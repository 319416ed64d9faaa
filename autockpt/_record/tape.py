"""The tape: allocations, frees and markers of one run, in the order in which they happened.

A marker is itself an allocation, of a size that nothing else has, freed at once. So it lies in the
allocator's own stream of events, in exactly the right place, with no clock to be trusted:

    stream   alloc 8192 · alloc 4099 · free 4099 · alloc 512 · free 8192 · ...
    tape     alloc 8192 · mark 0                 · alloc 512 · free 8192 · ...
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError

MARK_BYTES = 4097
"""Size of marker allocation 0; marker i is 2 i bytes larger. Odd: no tensor of 2, 4 or 8 byte elements has it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: an allocation or a free of the storage `key`, or marker number `key`."""

    kind: Literal["alloc", "free", "mark"]
    key: int
    bytes: int = 0


class Tape(Protocol):
    """Where a run is recorded; used as a context around the run."""

    def __enter__(self) -> Tape: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def mark(self) -> int:
        """Put a marker on the tape and return its number, counted from 0."""

    def key(self, tensor: torch.Tensor) -> int:
        """Return what identifies the tensor's storage while it lives; 0 for an empty one."""

    def events(self) -> list[Event]:
        """Return everything recorded, in order. Only after the context was left."""


def storage_address(tensor: torch.Tensor) -> int:
    """Address of a tensor's storage, by which the allocator knows it; 0 where it has none."""
    if tensor.layout != torch.strided or tensor._is_zerotensor():  # forward-mode derivatives that are zero
        return 0
    return tensor.untyped_storage().data_ptr()


class AllocatorTape:
    """A tape made of the allocator's own events, so that buffers inside kernels count.

    Args:
        device: whose allocations are recorded, ``cpu`` or a CUDA device.

    Raises:
        ProfilingError: on entering, if somebody else's profiler is running.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[int, int]] = []
        self._events: list[Event] = []
        self._profiler: private.MemoryProfiler | None = None

    def __enter__(self) -> AllocatorTape:
        if private.profiler_is_running():
            raise ProfilingError(
                "a torch profiler is already running; recording would empty it. Stop it first, or record outside of it "
                "(`autockpt.measure` runs one on a CPU: let one step be planned before you measure)."
            )
        self._profiler = private.start_memory_profiler()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._profiler is not None
        profiler, self._profiler = self._profiler, None
        allocations = private.stop_memory_profiler(profiler)
        if error is None:
            self._events = self._with_marks(allocations)

    def mark(self) -> int:
        size = MARK_BYTES + 2 * len(self._marks)
        self._marks.append((torch.empty(size, dtype=torch.uint8, device="cpu").data_ptr(), size))
        return len(self._marks) - 1

    def key(self, tensor: torch.Tensor) -> int:
        return storage_address(tensor)

    def events(self) -> list[Event]:
        return self._events

    def _with_marks(self, allocations: list[private.AllocationEvent]) -> list[Event]:
        """Turn the marker allocations back into markers and leave other devices out."""
        events: list[Event] = []
        pending: set[tuple[int, int]] = set()  # markers whose free is still to come
        next_mark = 0
        for pointer, change, device_type, device_index in allocations:
            if device_type == "cpu":
                if next_mark < len(self._marks) and (pointer, change) == self._marks[next_mark]:
                    events.append(Event("mark", next_mark))
                    pending.add((pointer, -change))
                    next_mark += 1
                    continue
                if (pointer, change) in pending:
                    pending.discard((pointer, change))
                    continue
            if device_type != self._device.type or (device_type != "cpu" and device_index != self._device.index):
                continue
            if change > 0:
                events.append(Event("alloc", pointer, change))
            elif change < 0:
                events.append(Event("free", pointer, -change))
        if next_mark != len(self._marks):
            raise ProfilingError(
                f"the profiler's stream holds {next_mark} of {len(self._marks)} markers: "
                f"it lost events, or torch {torch.__version__} reports allocations in another way"
            )
        return events
