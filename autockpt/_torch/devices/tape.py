"""The tape: allocations, frees and markers of one run, in the order in which they happened.

A marker is itself an allocation, of a size that nothing else has, and it is freed at once. So it is at exactly the
right place in the allocator's own stream of events, and no clock has to be trusted:

    stream   alloc 8192 · alloc 4099 · free 4099 · alloc 512 · free 8192 · ...
    tape     alloc 8192 · mark 1                 · alloc 512 · free 8192 · ...

Markers come from every thread, and from finalizers that run while another marker is made. So Python may number them in
another order than they were allocated in. Each has a size of its own, by which it is found again.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple

import torch

from ..._data.errors import ProfilingError
from .. import private

MARK_BYTES = 4097
"""Size of marker 0; marker i is 2 i bytes larger. Sizes are odd, so no tensor of 2, 4 or 8 byte elements has one."""

OUT_OF_ORDER = 256
"""By how many places a marker may be out of order. An allocation that looks like one further off is the user's."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: an allocation or a free of the storage `key`, or marker number `key`."""

    kind: Literal["alloc", "free", "mark"]
    key: int
    bytes: int = 0


class _Asked(NamedTuple):
    """`bytes` that were requested at an address, before marker `before`. The allocator may have handed out more."""

    before: int
    address: int
    bytes: int


def storage_address(tensor: torch.Tensor) -> int:
    """Address of a tensor's storage, as in the allocator's events; 0 if it has none."""
    tensor = private.local(tensor)
    if tensor.layout != torch.strided or tensor._is_zerotensor():  # zero tangents of forward-mode derivatives
        return 0
    if not private.storage_key(tensor):  # a wrapper inside a transform of `torch.func`
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a subclass that wraps tensors and has no memory of its own
        return 0


class AllocatorTape:
    """A tape made of the allocator's own events, so that temporary buffers of kernels count.

    Args:
        device: the device whose allocations are recorded.
        grain_bytes: its allocator rounds sizes up to multiples of this. It hands out more if it does not split a larger
            cached block.

    Raises:
        ProfilingError: on entering, if a profiler runs that cannot be ended now.
    """

    def __init__(self, device: torch.device, *, grain_bytes: int = 1) -> None:
        self._device, self._grain_bytes = device, grain_bytes
        self._numbers = itertools.count()
        self._addresses: dict[int, int] = {}  # by number of the marker
        self._asked: list[_Asked] = []
        self._events: list[Event] = []
        self._profiler: private.MemoryProfiler | None = None

    def __enter__(self) -> AllocatorTape:
        private.end_our_profiler()
        if self._device.type == "cpu" and private.measuring():
            self._profiler = private.start_memory_profiler()
            return self
        if private.our_profiler_is_running():
            raise ProfilingError(
                "autockpt is recording already (a step of another model), and a process has only one torch profiler."
            )
        if private.profiler_is_running():
            where = "" if private.profiler_is_running(elsewhere=False) else " in another thread"
            raise ProfilingError(
                f"a torch profiler is already running{where}; recording would empty it, since a process has only one. "
                "Stop it first, or record outside of it (`apply` records its first step)."
            )
        self._profiler = private.start_memory_profiler()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._profiler is not None
        profiler, self._profiler = self._profiler, None
        allocations = private.stop_memory_profiler(profiler, self._device.type)
        if kind is None:
            self._events = self._with_marks(allocations)

    def mark(self) -> int:
        """Put a marker on the tape and return its number, which no other marker has."""
        number = next(self._numbers)
        # A bare storage: no operator runs, so no mode sees the marker.
        self._addresses[number] = torch.UntypedStorage(self._marker_bytes(number)).data_ptr()
        return number

    @staticmethod
    def _marker_bytes(number: int) -> int:
        return MARK_BYTES + 2 * number

    @staticmethod
    def _marker_number(size_bytes: int) -> int:
        """Return which marker has this size; -1 where none has."""
        return (size_bytes - MARK_BYTES) // 2 if size_bytes >= MARK_BYTES and size_bytes % 2 else -1

    def key(self, tensor: torch.Tensor) -> int:
        """Return what identifies the tensor's storage while it lives; 0 for an empty one."""
        address = storage_address(tensor)
        if address and self._grain_bytes > 1:
            rounded = -(-private.local(tensor).untyped_storage().nbytes() // self._grain_bytes) * self._grain_bytes
            self._asked.append(_Asked(len(self._addresses), address, rounded))
        return address

    def events(self) -> list[Event]:
        """Return all events in order. Call it only after the context was left."""
        return self._events

    def _with_marks(self, allocations: list[private.AllocationEvent]) -> list[Event]:
        """Turn allocations of markers into markers, leave out other devices, and reduce sizes to those requested."""
        events: list[Event] = []
        live: dict[int, int] = {}  # by address, the index of the event that allocated it
        asked = deque(self._asked)
        left = dict(self._addresses)
        pending: set[tuple[int, int]] = set()  # frees of markers that are still to come
        found = 0
        for pointer, change, device_type, device_index in allocations:
            if device_type == "cpu":
                number = self._marker_number(change)
                if left.get(number) == pointer and abs(number - found) <= OUT_OF_ORDER:
                    del left[number]
                    found += 1
                    while asked and asked[0].before <= number:
                        each = asked.popleft()
                        if each.address in live and events[live[each.address]].bytes > each.bytes:
                            events[live[each.address]] = Event("alloc", each.address, each.bytes)
                    events.append(Event("mark", number))
                    pending.add((pointer, -change))
                    continue
                if (pointer, change) in pending:
                    pending.discard((pointer, change))
                    continue
            if device_type != self._device.type or (device_type != "cpu" and device_index != self._device.index):
                continue
            if change > 0:
                live[pointer] = len(events)
                events.append(Event("alloc", pointer, change))
            elif change < 0:
                live.pop(pointer, None)
                events.append(Event("free", pointer, -change))
        self._refuse_unread(events, found, complete=not left)
        return events

    def _refuse_unread(self, events: list[Event], found: int, *, complete: bool) -> None:
        """Refuse a stream that has lost markers, or that has no allocation."""
        if not complete:
            raise ProfilingError(
                f"the profiler's stream holds {found} of {len(self._addresses)} markers: "
                "forward calls modules in threads of its own, backward is called in another thread, or a torch "
                "profiler was begun, and recording sees none of these; "
                f"or torch {torch.__version__} reports allocations in another way. Write a plan by hand (Plan.of)."
            )
        if not any(event.kind == "alloc" for event in events):
            raise ProfilingError(
                f"the allocator of {self._device} reported nothing, so what the step held was not seen. "
                "`autockpt doctor` says what is reported on this machine."
            )
