"""Stage 1, first: the profiler below recording: what it sees, what its trace takes, and whether it slows launches.

Where recording sees nothing all else would fail: then this is the only row, and the raw events are in its folder.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import autockpt
from benchmarks.gpu.memory import synchronize
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import Setting
from tests.doors import AllocatorTape

__all__ = ["rows"]

LAUNCHES = 2000
KNOWN_BYTES = 1021 * 4096 * 4
ROUNDING_BYTES = 2 * 2**20

COMPLETE = "complete"

EXPECTED = {"known tensor seen": True, "runtime events": 0}
"""Recording asks the profiler for the host's activities alone: calls of CUDA's runtime should not be among them."""


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the row; its process has had no profiler before."""
    return [Job(name="profiler", run=partial(_row, setting.device, folder), process="profiler", vital=True)]


def _row(device: torch.device, folder: Path) -> Iterator[Figures]:
    yield "predicted", dict(EXPECTED)
    found = _look(device, folder)
    yield "measured", found
    if not found["known tensor seen"]:
        raise LookupError(f"no allocation of {KNOWN_BYTES:,} bytes on {device} among {found['memory events']}")
    if found["tape"] != COMPLETE:
        raise LookupError(f"the trace has the known tensor, recording has not: {found['tape']}")


def _look(device: torch.device, folder: Path) -> dict[str, Any]:
    """Record launches and a tensor of a known size as a step is recorded, and return what there is to tell."""
    _launch_seconds(device)  # the first ones load the kernel
    before = _launch_seconds(device)
    error = ""
    with _kept(folder / "trace.json") as kept:
        try:
            with AllocatorTape(device) as tape:
                tape.mark()
                held = torch.empty(KNOWN_BYTES, dtype=torch.uint8, device=device)
                inside = _launch_seconds(device)
                del held
                tape.mark()
        except autockpt.ProfilingError as raised:
            error = str(raised)
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    memory = [each["args"] for each in events if each.get("name") == "[memory]"]
    kinds = {value: name.lower() for name, value in _device_types().items()}
    seen = [
        each["Bytes"]
        for each in memory
        if kinds[each["Device Type"]] == device.type and 0 <= each["Bytes"] - KNOWN_BYTES < ROUNDING_BYTES
    ]
    return {
        "known tensor seen": bool(seen),
        "memory events": dict(Counter(kinds[each["Device Type"]] for each in memory)),
        "runtime events": sum("cuda" in str(each.get("cat", "")) for each in events),
        "launch_seconds": before,
        "launch_seconds recorded": inside,
        "launch_seconds after": _launch_seconds(device),
        "trace_seconds": kept["seconds"],
        "trace_bytes": (folder / "trace.json").stat().st_size,
        "tape": error or COMPLETE,
        "history": _history(device, folder),
    }


@contextmanager
def _kept(path: Path) -> Iterator[dict[str, float]]:
    """Save the trace of the profiler that ends in this context, and time that, whether or not it is asked for."""
    told: dict[str, float] = {}
    real: Any = torch.autograd._disable_profiler  # type: ignore[attr-defined]

    def disable() -> Any:
        results = real()
        began = time.perf_counter()
        results.save(str(path))
        told["seconds"] = time.perf_counter() - began
        return _Saved(results, path)

    with mock.patch.object(torch.autograd, "_disable_profiler", disable):
        yield told


class _Saved:
    """What a profiler found, saved already: a trace is written once."""

    def __init__(self, results: Any, path: Path) -> None:
        self._results, self._path = results, path

    def save(self, path: str) -> None:
        shutil.copy(self._path, path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)


def _launch_seconds(device: torch.device) -> float:
    """Return the host's seconds of one launch, the mean of many."""
    tensor = torch.zeros(8, device=device)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        tensor.add(1)
    seconds = time.perf_counter() - began
    synchronize(device)
    return seconds / LAUNCHES


def _history(device: torch.device, folder: Path) -> str:
    """Try the allocator's own history, the other way to see allocations; return what came of it."""
    if device.type != "cuda":
        return "not on this device"
    try:
        torch.cuda.memory._record_memory_history(max_entries=10_000, stacks="python")
        held = torch.empty(KNOWN_BYTES, dtype=torch.uint8, device=device)
        del held
        snapshot = torch.cuda.memory._snapshot(device)
        torch.cuda.memory._record_memory_history(enabled=None)
    except Exception as error:  # whatever it lacks here is the answer
        return f"{type(error).__name__}: {str(error)[:200]}"
    entries = [
        {key: entry[key] for key in ("action", "addr", "size") if key in entry}
        for entry in snapshot["device_traces"][device.index or 0]
    ]
    (folder / "history.json").write_text(json.dumps(entries))
    seen = any(0 <= entry.get("size", 0) - KNOWN_BYTES < ROUNDING_BYTES for entry in entries)
    return f"{len(entries)} entries, the known tensor {'among' if seen else 'not among'} them"


def _device_types() -> dict[str, int]:
    members: Any = torch._C._autograd.DeviceType.__members__
    return {name: int(value) for name, value in members.items()}
