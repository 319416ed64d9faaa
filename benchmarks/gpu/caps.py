"""Stage 4, hard caps: how much more than the budget the device must have, for a plan and for the plain step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt import Plan, Profile
from benchmarks.gpu.memory import clean, footprint
from benchmarks.gpu.rows import Figures, Job, out_of_memory
from benchmarks.gpu.steps import (
    Setting,
    Step,
    Subject,
    pairs,
    peak,
    plan_within,
    planned,
    record,
    subject,
    verdict,
)

__all__ = ["of_model", "predict", "rows"]

MODELS = ("resnet-50", "llama-1b", "gpt2-large")
PERCENTS = (40, 60, 80)
"""The hardest first, should time be over before the end."""

MARGINS = (0.0, 0.03, 0.05, 0.10, 0.15, 0.25)
"""What the allocator gets beyond the budget: the first of these with which steps run is what it needs.

`apply` leaves 3 % of a budget for what CUDA's allocator reserves beyond what it hands out (docs/limits.md).
"""

EXPECTED_MARGIN = 0.03

STEPS = 3
"""Steps under each cap."""

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the rows of stage 4: each model in a process of its own, then in another with expandable segments.

    Plans are in files before anything of a model is measured, and are the same for both.
    """
    names, percents = (MODELS, PERCENTS) if setting.size == "full" else (MODELS[:1], PERCENTS[1:2])
    return [job for name in names for job in _both(of_model(name, percents, setting, folder), setting)]


def _both(jobs: Iterator[Job], setting: Setting) -> Iterator[Job]:
    """Yield rows of a model, and those that measure once more with expandable segments."""
    again = []
    for job in jobs:
        yield job
        if not job.name.startswith("predict") and (setting.size == "full" or job.name.endswith("plain")):
            name, process = f"{job.name}, expandable", f"{job.process}, expandable"
            again.append(replace(job, name=name, process=process, environment=EXPANDABLE))
    yield from again


def of_model(name: str, percents: Sequence[int], setting: Setting, folder: Path) -> Iterator[Job]:
    """Yield the rows of one model, and of its plain step under its own peak."""
    process = f"cap {name}"
    yield Job(name=f"predict {name}", run=partial(predict, name, setting, folder, percents), process=process)
    for percent in percents:
        run = partial(capped, name, percent, setting, folder)
        yield Job(name=f"{name} {percent} %", run=run, process=process)
    yield Job(name=f"{name} plain", run=partial(capped_plain, name, setting), process=process)


def predict(name: str, setting: Setting, folder: Path, percents: Sequence[int]) -> Iterator[Figures]:
    """Record a step, and write down its profile and a plan for each budget."""
    of = subject(name, setting)
    profile, plain, _ = record(of)
    static_bytes = profile.static.total_bytes
    yield "predicted", {"plain_peak_bytes": plain.peak_bytes, "plain_seconds": profile.plain_seconds}
    profile.save(folder / f"{name}.profile.json.gz")
    for percent in percents:
        budget_bytes = static_bytes + (plain.peak_bytes - static_bytes) * percent // 100
        plan, reached = plan_within(profile, budget_bytes, setting)
        figures = {"peak_bytes": plan.peak_bytes, "overhead": plan.recompute_overhead, "within_budget": reached}
        yield "predicted", {f"{what} at {percent} %": figure for what, figure in figures.items()}
        plan.save(folder / f"{name}.{percent}.plan.json")


def capped(name: str, percent: int, setting: Setting, folder: Path) -> Iterator[Figures]:
    """Train under a plan that was made before, where the allocator gets the budget and as little more as it needs."""
    path = folder / f"{name}.{percent}.plan.json"
    if not path.exists():
        raise LookupError(f"no plan was made: see the row 'predict {name}'")
    plan, profile = Plan.load(path), Profile.load(folder / f"{name}.profile.json.gz")
    static_bytes = profile.static.total_bytes
    asked_bytes = static_bytes + (plan.plain_peak_bytes - static_bytes) * percent // 100
    budget_bytes = max(asked_bytes, plan.peak_bytes)  # where no plan reaches what was asked: the lowest peak
    yield (
        "predicted",
        {
            "asked_bytes": asked_bytes,
            "budget_bytes": budget_bytes,
            "peak_bytes": plan.peak_bytes,
            "overhead": plan.recompute_overhead,
            "fits": True,
            "margin": EXPECTED_MARGIN,
            "verdict": "exact" if plan.segments else "nothing recomputed",
        },
    )
    of = subject(name, setting)
    other_bytes = max(autockpt.measure(of.step, device=of.device).start_bytes - static_bytes, 0)
    yield "measured", {"other_bytes": other_bytes, "fits": False, "budget_bytes": budget_bytes}
    with planned(of, plan) as step:
        margin, found = _least_margin(of, step, budget_bytes, other_bytes)
        yield "measured", found
        if margin is None:
            raise torch.OutOfMemoryError(f"CUDA out of memory at the budget and {MARGINS[-1]:.0%}")
        yield "measured", {"margin": margin, "fits": margin <= EXPECTED_MARGIN}
        yield "measured", {"peak_bytes": peak(of, profile)["peak_bytes"]}
    yield "measured", dict(pairs(of, partial(planned, of, plan), setting.pairs))
    yield "measured", dict(verdict(of, plan))


def capped_plain(name: str, setting: Setting) -> Iterator[Figures]:
    """Take plain steps where the allocator gets their own peak and a margin: what fragmentation takes by itself."""
    of = subject(name, setting)
    found = autockpt.measure(of.step, device=of.device)
    yield "measured", {"plain_peak_bytes": found.peak_bytes}
    margin, said = _least_margin(of, of.step, found.peak_bytes, 0)
    yield "measured", said
    if margin is None:
        raise torch.OutOfMemoryError(f"CUDA out of memory at its own peak and {MARGINS[-1]:.0%}")
    yield "measured", {"plain margin": margin}


def _least_margin(of: Subject, step: Step, budget_bytes: int, other_bytes: int) -> tuple[float | None, dict[str, Any]]:
    """Take steps under ever higher caps until they run; where nothing caps, what is measured has to say it.

    Returns:
        The margin beyond the budget, None where the highest was too little; the cap, and what the allocator says.
    """
    if of.device.type != "cuda":
        level_bytes = autockpt.measure(step, device=of.device).peak_bytes - other_bytes
        return next((each for each in MARGINS if level_bytes <= budget_bytes * (1 + each)), None), {}
    total_bytes = torch.cuda.get_device_properties(of.device).total_memory
    tried: list[str] = []
    for margin in MARGINS:
        cap_bytes = int(budget_bytes * (1 + margin)) + other_bytes
        clean(of.device)
        torch.cuda.set_per_process_memory_fraction(min(cap_bytes / total_bytes, 1.0), of.device)
        try:
            for _ in range(STEPS):
                step()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            tried.append(f"{margin:.0%}: {' '.join(str(error).split())[:120]}")
            of.optimizer.zero_grad()
            continue
        found = {"cap_bytes": cap_bytes, "too little": tried, "memory": footprint(of.device)}
        clean(of.device)
        return margin, found
    clean(of.device)
    return None, {"too little": tried}
