"""The main road: ``apply(model, budget)`` in a loop, with its log, beside the same loop without it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import autockpt
from benchmarks.gpu.memory import clean
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import DETERMINISTIC, Setting, Subject, deterministic, subject
from benchmarks.gpu.watch import Loop, bits, listening, watch

__all__ = ["drive", "rows"]

MODELS = ("gpt2-small", "llama-100m", "resnet-50")

SHARE = 0.6
"""The budget: so much of what the plain step adds to what is there before it. Of the Llama, 53 % is the lowest."""

STEPS = {"full": 8, "tiny": 4}
"""Of each loop. The first is recorded, the second timed; the plan is made as the third begins."""

UNPLANNED = 2


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return a row for each model, in a process of its own, and one with kernels that repeat themselves."""
    names = MODELS if setting.size == "full" else MODELS[:1]
    return [
        *(
            Job(name=f"{name}: main road", run=partial(drive, name, setting, share=SHARE), process=f"road {name}")
            for name in names
        ),
        Job(
            name=f"{names[0]}: main road, deterministic",
            run=partial(drive, names[0], setting, share=SHARE, around=deterministic),
            process="deterministic road",
            environment=DETERMINISTIC,
        ),
    ]


def drive(
    name: str, setting: Setting, *, share: float, around: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[Figures]:
    """Train twice without autockpt, and then under a budget: seconds, peaks, log and bits of every step.

    Args:
        name: the model.
        setting: how.
        share: how much of what the plain step adds the budget leaves.
        around: in which context all of it runs.
    """
    with around():
        plain = _plain(name, setting)
        clean(setting.device)
        repeats = plain.ends == _plain(name, setting).ends
        clean(setting.device)
        of = subject(name, setting)
        budget_bytes = plain.idle_bytes + int((plain.peak_bytes - plain.idle_bytes) * share)
        yield "predicted", {"budget_bytes": budget_bytes, "plain_peak_bytes": plain.peak_bytes}
        yield "predicted", {"fits": True, "warnings": 0, "same bits": repeats}
        with listening() as told:
            autockpt.apply(of.model, budget_bytes, seconds=setting.search_seconds)
            loop = _steps(of, UNPLANNED + 1)
            plan = autockpt.plan_of(of.model)
            if plan is None:
                yield "measured", {"log": told.lines, "steps' seconds": loop.seconds}
                raise LookupError("the third step began without a plan")
            yield "predicted", {"peak_bytes": plan.peak_bytes, "overhead": plan.recompute_overhead}
            yield "predicted", {"plain_seconds": plan.plain_seconds, "segments": len(plan.segments)}
            while len(loop.seconds) < STEPS[setting.size]:
                watch(loop, of.step, of.device)
        yield "measured", {"same bits": bits(of.model) == plain.ends, "plain repeats": repeats}
        yield "measured", _compared(plain, loop, of, budget_bytes)
        yield "measured", {"warnings": len(told.warnings), "log": told.lines, "segments": len(plan.segments)}
        autockpt.remove(of.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """A loop without autockpt: its steps, their peak, what is allocated between them, and the bits at the end."""

    loop: Loop
    peak_bytes: int
    idle_bytes: int
    ends: list[int]


def _plain(name: str, setting: Setting) -> _Plain:
    of = subject(name, setting)
    loop = _steps(of, STEPS[setting.size])
    ends = bits(of.model)
    found = autockpt.measure(of.step, device=of.device)
    peak_bytes = max([*loop.peaks_bytes, found.peak_bytes])
    return _Plain(loop=loop, peak_bytes=peak_bytes, idle_bytes=found.start_bytes, ends=ends)


def _steps(of: Subject, count: int) -> Loop:
    """Train from the same random numbers each time."""
    loop = Loop()
    torch.manual_seed(1)
    for _ in range(count):
        watch(loop, of.step, of.device)
    return loop


def _compared(plain: _Plain, loop: Loop, of: Subject, budget_bytes: int) -> dict[str, Any]:
    """Put the planned steps beside the plain ones, and say what the steps before them took."""
    peaks = loop.peaks_bytes[UNPLANNED:] or [autockpt.measure(of.step, device=of.device).peak_bytes]
    alike = slice(UNPLANNED + 1, None)  # in the third the plan is made
    plain_seconds, seconds = statistics.median(plain.loop.seconds[alike]), statistics.median(loop.seconds[alike])
    return {
        "fits": max(peaks) <= budget_bytes,
        "plain_peak_bytes": plain.peak_bytes,
        "peak_bytes": max(peaks),
        "plain_seconds": plain_seconds,
        "step_seconds": seconds,
        "overhead": seconds / plain_seconds - 1,
        "recorded_step_seconds": loop.seconds[0],
        "timed_step_seconds": loop.seconds[1],
        "planning_step_seconds": loop.seconds[2],
        "steps' seconds": loop.seconds,
        "steps' peaks": loop.peaks_bytes,
        "plain steps' seconds": plain.loop.seconds,
        "plain steps' peaks": plain.loop.peaks_bytes,
    }
