"""Where a step's time goes: what the device works, what it waits, and what the host takes, plain and recomputed.

host    ████████████████████████        until the step's last call has returned, from an idle device
device  ··███████··████████████··███    kernels; what is between them it waits, for the host or for copies
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt import Plan, Segment
from benchmarks.frontier.blocks import find_blocks
from benchmarks.gpu.clocks import on_two_clocks
from benchmarks.gpu.memory import synchronize
from benchmarks.gpu.methods import METHODS, TORCH, Way
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import Setting, Step, Subject, planned, record, subject

__all__ = ["every_block", "rows", "where_time_goes"]

MODELS = ("llama-100m", "llama-1b")
STEPS = {"full": 8, "tiny": 2}
MOST_NAMES = 12


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return a row for each model."""
    return [
        Job(name=f"where time goes: {name}", run=partial(where_time_goes, name, setting), process=name)
        for name in MODELS
    ]


def where_time_goes(name: str, setting: Setting) -> Iterator[Figures]:
    """Time the plain step, torch's checkpoint on every block, and plans of ours, in turns; then trace one of each.

    Where torch's profiler traces no device, steps are only timed.
    """
    traces = torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()
    of = subject(name, setting)
    profile, _, _ = record(of)
    lowest = autockpt.solve(profile, "lowest", seconds=setting.search_seconds)
    yield (
        "predicted",
        {"overhead": lowest.recompute_overhead, "kept calls": sum(len(each.keep) for each in lowest.segments)},
    )
    yield "predicted", on_two_clocks(profile, {"plain": None, "every block": every_block(of), "lowest": lowest})
    ways: dict[str, Way] = {
        "plain": lambda of: nullcontext(of.step),
        TORCH: METHODS[TORCH](),
        "every block": partial(planned, plan=every_block(of)),
        "lowest": partial(planned, plan=lowest),
    }
    found: dict[str, dict[str, list[float]]] = {way: {"step": [], "host": []} for way in ways}
    for _ in range(2):
        for way, make in ways.items():
            with make(of) as step:
                _timed(step, of, STEPS[setting.size], found[way])
    for way, make in ways.items():
        figures = {f"{way}: {what} seconds": statistics.median(each) for what, each in found[way].items()}
        yield "measured", {**figures, "traces": traces}
        if traces:
            with make(of) as step:
                step()
                yield "measured", {f"{way}: {what}": value for what, value in _traced(step, of).items()}


def every_block(of: Subject) -> Plan:
    """Recompute each block whole."""
    name_of = {module: name for name, module in of.model.named_modules()}
    names = [name_of[block] for blocks in find_blocks(of.model) for block in blocks]
    return Plan(segments=tuple(Segment(calls=(f"{name}#0",)) for name in names))


def _timed(step: Step, of: Subject, count: int, found: dict[str, list[float]]) -> None:
    """Time steps one by one, each from an idle device: until its last call returns, and until the device is idle."""
    for _ in range(2):  # the first compares every replay
        step()
    for _ in range(count):
        synchronize(of.device)
        began = time.perf_counter()
        step()
        found["host"].append(time.perf_counter() - began)
        synchronize(of.device)
        found["step"].append(time.perf_counter() - began)


def _traced(step: Step, of: Subject) -> dict[str, Any]:
    """Trace one step on the device: seconds in which it works, launches, and what the host waits for."""
    synchronize(of.device)
    context: Callable[..., AbstractContextManager[Any]] = torch.profiler.profile
    with context(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        synchronize(of.device)
    events = profiler.profiler.kineto_results.events()
    on_device = sorted(
        (each.start_ns(), each.start_ns() + each.duration_ns(), each.name())
        for each in events
        if str(each.device_type()).endswith("CUDA")
    )
    worked, until = 0, 0
    for start, end, _ in on_device:
        worked += max(end - max(start, until), 0)
        until = max(until, end)
    calls = Counter(each.name() for each in events if str(each.device_type()).endswith("CPU"))
    waits = {name: count for name, count in calls.items() if "ynchronize" in name or "Memcpy" in name}
    seconds: Counter[str] = Counter()
    for start, end, name in on_device:
        seconds[name[:60]] += end - start
    return {
        "device works, seconds": worked / 1e9,
        "kernels and copies": len(on_device),
        "runtime calls": calls.most_common(MOST_NAMES),
        "waits and copies": waits,
        "most seconds": [(name, round(taken / 1e9, 5)) for name, taken in seconds.most_common(MOST_NAMES)],
    }
