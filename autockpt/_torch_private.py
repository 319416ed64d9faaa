"""Every private torch name that autockpt uses, each behind one small function with a test per torch version."""

from __future__ import annotations

from typing import Any

import torch


# --- the recorder ---------------------------------------------------------------------------------------

AllocationEvent = tuple[int, int, str, int | None]
"""Address, change in bytes (negative for a free), device type, device index."""


def profiler_is_running() -> bool:
    """Return whether a torch profiler is recording in this thread."""
    return bool(torch.autograd._profiler_enabled())


def allocation_events(profiler: torch.profiler.profile) -> list[AllocationEvent]:
    """Return every allocation and free that a finished profiler (``profile_memory=True``) saw, in time order."""
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    found: list[tuple[int, AllocationEvent]] = []
    todo: list[Any] = list(profiler.profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            fields = event.extra_fields
            found.append((event.start_time_ns, (fields.ptr, fields.alloc_size, fields.device.type, fields.device.index)))
    found.sort(key=lambda entry: entry[0])
    return [event for _, event in found]


def saving_node() -> int:
    """Return, inside a pack hook, the sequence number of the autograd node that saves the tensor."""
    return int(torch._C._autograd._get_sequence_nr()) - 1
