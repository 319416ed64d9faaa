"""What a device holds: an empty cache for the next row, and what allocators and the host say after one."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import torch

__all__ = ["clean", "footprint", "synchronize", "uncapped"]


def clean(device: torch.device) -> None:
    """Let go of what a row held, empty the allocator's caches, and begin its statistics anew.

    Raises:
        RuntimeError: the device answers nothing any more, as after an illegal access; a new process has to go on.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        uncapped(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.reset_accumulated_memory_stats(device)


def uncapped(device: torch.device) -> None:
    """Give the allocator all of the device again."""
    torch.cuda.set_per_process_memory_fraction(1.0, device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def footprint(device: torch.device) -> dict[str, Any]:
    """Return what the allocators of device and pinned memory say since `clean`, and what is left of the host's memory.

    ``reserved_over_allocated`` is the peak of one over the peak of the other.
    """
    found: dict[str, Any] = {"available_bytes": _available_bytes()}
    if device.type != "cuda":
        return found
    stats = torch.cuda.memory_stats(device)
    allocated, reserved = stats.get("allocated_bytes.all.peak", 0), stats.get("reserved_bytes.all.peak", 0)
    pinned = {
        key: value
        for key, value in torch.cuda.host_memory_stats().items()
        if re.match(r"(active|allocated)_bytes", key)
    }
    return {
        **found,
        "allocated_peak_bytes": allocated,
        "reserved_peak_bytes": reserved,
        "reserved_over_allocated": reserved / allocated if allocated else 0.0,
        "inactive_split_peak_bytes": stats.get("inactive_split_bytes.all.peak", 0),
        "alloc_retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
        "pinned": pinned,
    }


def _available_bytes() -> int | None:
    """Return the host's memory that could be taken now, as Linux says; None elsewhere."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
