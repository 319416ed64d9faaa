"""The tape of a device that is not there: its allocations are reported as its allocator would report them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.doors import AllocatorTape, torch_private

CUDA, SECOND = 0x0001, 0x0101
"""``c10::Device`` as it is passed in a register: device type 1, index 0 and 1."""


def reporter() -> Any:
    """What CUDA's caching allocator calls, with a pointer, the change, two totals and the device."""
    library = Path(torch.__file__).parent / "lib/libc10.so"
    try:
        names = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
        (name,) = re.findall(r"_ZN3c10\w*reportMemoryUsageToProfiler\w+", names)
        report: Any = getattr(ctypes.CDLL(str(library)), name)
    except (OSError, ValueError, AttributeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this torch has no such function: {error}")
    report.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint16]
    report.restype = None
    return report


def test_allocations_of_a_device_are_seen_in_order_between_those_of_the_cpu() -> None:
    """Torch's tree of events leaves out those of a device that no operator is the parent of."""
    report = reporter()
    profiler = torch_private.start_memory_profiler()
    first = torch.empty(3001, dtype=torch.uint8)
    report(0x7000, 512, 512, 1024, CUDA)
    second = torch.empty(5003, dtype=torch.uint8)
    report(0x7000, -512, 0, 1024, CUDA)
    del first, second
    events = torch_private.stop_memory_profiler(profiler, "cuda")
    wanted = [(change, kind) for _, change, kind, _ in events if abs(change) in (512, 3001, 5003)]
    assert wanted[:4] == [(3001, "cpu"), (512, "cuda"), (5003, "cpu"), (-512, "cuda")]
    assert {(pointer, index) for pointer, _, kind, index in events if kind == "cuda"} == {(0x7000, 0)}


def test_markers_lie_between_the_allocations_of_a_device() -> None:
    """Those of another device are not on its tape."""
    report = reporter()
    tape = AllocatorTape(torch.device("cuda", 0), grain_bytes=512)
    with tape:
        tape.mark()
        report(0x7000, 1024, 1024, 2048, CUDA)
        report(0x9000, 4096, 4096, 4096, SECOND)
        tape.mark()
        report(0x7000, -1024, 0, 2048, CUDA)
        tape.mark()
    found = [(event.kind, event.bytes) for event in tape.events()]
    assert found == [("mark", 0), ("alloc", 1024), ("mark", 0), ("free", 1024), ("mark", 0)]


def test_both_readings_of_a_cpu_say_the_same() -> None:
    found = []
    for kind in ("cpu", "cuda"):
        profiler = torch_private.start_memory_profiler()
        kept = [torch.empty(size, dtype=torch.uint8) for size in range(1001, 1101, 2)]
        del kept[::2]
        events = torch_private.stop_memory_profiler(profiler, kind)
        found.append([change for _, change, *_ in events if abs(change) in range(1001, 1101, 2)])
        del kept
    assert found[0] == found[1]
    assert len(found[0]) == 75


def test_a_profiler_that_another_one_has_ended_has_seen_nothing() -> None:
    """To save what it recorded would read a null pointer."""
    profiler = torch_private.start_memory_profiler()
    with torch.autograd.profiler.profile():
        torch.ones(3)
    assert torch_private.stop_memory_profiler(profiler, "cuda") == []
