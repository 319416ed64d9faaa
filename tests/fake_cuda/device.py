"""The loaded device: what can be set in it, what it has counted, and which operators ran where."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from .build import built_library

NAME = "Fake CUDA device"
TOTAL_BYTES = 8 << 30
MOST_DEVICES = 2
BACKENDS = ("native", "cudaMallocAsync")
ATTENTION = ("auto", "math", "flash", "efficient")
POOLS = ("all", "small_pool", "large_pool")
FIGURES = ("current", "peak", "allocated", "freed")
COUNTED = (
    "allocated_bytes",
    "reserved_bytes",
    "requested_bytes",
    "inactive_split_bytes",
    "allocation",
    "segment",
    "inactive_split",
)
HOST_COUNTED = ("active_requests", "active_bytes", "allocations", "allocated_bytes")
_NUMBERS = ("exchange_device", "stream", "take_peak", "limit_of", "capturing", "reporting")
"""Functions of the library that return a number."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the device behaves.

    Args:
        workspace_bytes: What a thread's first product takes and keeps. A GPU's 8 MiB or more would be all that small
            models hold.
        bias_workspace_bytes: What a thread's first product with a bias takes besides, and keeps.
        scratch_bytes: What a convolution takes and gives back.
        attention: Which kind runs where none drops anything; ``auto`` as on a GPU.
        mib_bytes: The allocator's MiB, from which its segments are counted. With 16 KiB a model of 50 MB lies in
            segments as one of 3 GB does.
        backend: What the allocator is called; ``cudaMallocAsync`` reports nothing to the profiler.
        capturing: Whether every stream says that it captures a graph.
        pinned_limit_bytes: How much of the host can be pinned; None is all.
    """

    workspace_bytes: int = 1 << 16
    bias_workspace_bytes: int = 0
    scratch_bytes: int = 0
    attention: Literal["auto", "math", "flash", "efficient"] = "auto"
    mib_bytes: int = 1 << 20
    backend: Literal["native", "cudaMallocAsync"] = "native"
    capturing: bool = False
    pinned_limit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ran:
    """An operator that ran on the device.

    Args:
        operator: Its name, as ``aten::mm``.
        device: Number of the device.
        stream: Number of the stream that was current; 0 is the default one.
        thread: The native id of the thread.
    """

    operator: str
    device: int
    stream: int
    thread: int


@functools.cache
def load() -> Any:
    """Return the library, loaded once for the process: what it registers with torch cannot be taken back.

    Raises:
        NoFakeDevice: It cannot be had here.
    """
    import torch

    path = str(built_library())
    torch.ops.load_library(path)
    loaded = ctypes.CDLL(path)
    for name in _NUMBERS:
        getattr(loaded, f"fake_{name}").restype = ctypes.c_int64
    loaded.fake_seen.restype = ctypes.c_char_p
    return loaded


def installed() -> bool:
    """Whether this process has the device."""
    return load.cache_info().currsize > 0


def call(name: str, *numbers: int) -> int:
    """Call a function of the library's on whole numbers; what it returns means nothing where it returns none."""
    found: int = getattr(load(), f"fake_{name}")(*(ctypes.c_int64(number) for number in numbers))
    return found


def set_options(options: Options) -> None:
    """Let the device behave so from now on."""
    limit = options.pinned_limit_bytes
    call("set_workspace", options.workspace_bytes)
    call("set_bias_workspace", options.bias_workspace_bytes)
    call("set_scratch", options.scratch_bytes)
    call("set_attention", ATTENTION.index(options.attention) - 1)
    call("set_mib", options.mib_bytes)
    call("set_reports", options.backend == "native")
    call("set_capturing", options.capturing)
    call("set_pinned_limit", (1 << 63) - 1 if limit is None else limit)


def backend() -> str:
    """Return what the allocator is called."""
    return BACKENDS[not call("reporting")]


def take_peak(device: int = 0) -> int:
    """Return the highest level since the last call, without touching the statistics of ``torch.cuda``."""
    return call("take_peak", device)


@contextmanager
def watching() -> Iterator[list[Ran]]:
    """Fill the list with what ran on the device in this context, in any thread, as it ends."""
    found: list[Ran] = []
    call("watch", 1)
    try:
        yield found
    finally:
        call("watch", 0)
        for line in load().fake_seen().decode().splitlines():
            name, *numbers = line.split()
            device, stream, thread = map(int, numbers)
            found.append(Ran(operator=name, device=device, stream=stream, thread=thread))


def let_draws_meet(draws: int) -> None:
    """Let so many of the next operators that draw, each in a thread of its own, be about to at the same time."""
    call("meet", draws)


def memory_stats(device: int) -> dict[str, Any]:
    """Return what torch's extension would: for each figure all, the small and the large pool."""
    found = (ctypes.c_int64 * (len(COUNTED) * len(POOLS) * len(FIGURES) + 2))()
    load().fake_stats(ctypes.c_int64(device), found)
    figures = iter(found)
    stats: dict[str, Any] = {
        name: {pool: {figure: next(figures) for figure in FIGURES} for pool in POOLS} for name in COUNTED
    }
    none = dict.fromkeys(FIGURES, 0)
    return {
        **stats,
        "active_bytes": stats["allocated_bytes"],
        "active": stats["allocation"],
        "oversize_allocations": none,
        "oversize_segments": none,
        "num_alloc_retries": next(figures),
        "num_ooms": next(figures),
        "max_split_size": -1,
    }


def host_memory_stats() -> dict[str, Any]:
    """Return what torch's extension would of pinned memory; it takes no time."""
    found = (ctypes.c_int64 * (len(HOST_COUNTED) * len(FIGURES) + 2))()
    load().fake_host_stats(found)
    figures = iter(found)
    stats: dict[str, Any] = {name: {figure: next(figures) for figure in FIGURES} for name in HOST_COUNTED}
    no_time = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
    return {
        **stats,
        "num_host_alloc": next(figures),
        "num_host_free": next(figures),
        "host_alloc_time": no_time,
        "host_free_time": no_time,
    }
