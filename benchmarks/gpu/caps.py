"""Stage 3, hard caps: the device has no more memory than the budget and the margin that the documentation states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

import autockpt
from autockpt import Plan, Profile
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import Setting, pairs, peak, plan_within, planned, record, subject, verdict

__all__ = ["predict", "rows"]

MODELS = ("resnet-50", "gpt2-large", "llama-1b")
PERCENTS = (40, 60, 80)

MARGIN = 0.03
"""What `apply` leaves of a budget for what CUDA's allocator reserves beyond what it hands out (docs/limits.md)."""

STEPS = 3
"""Steps under the cap."""


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the rows of stage 3: all predictions first, and what they are is in files before anything is measured."""
    first = [Job(name=f"predict {name}", run=partial(predict, name, setting, folder, PERCENTS)) for name in MODELS]
    capped_rows = [
        Job(name=f"{name} {percent} %", run=partial(capped, name, percent, setting, folder))
        for percent in PERCENTS  # the hardest first, should time be over before the end
        for name in MODELS
    ]
    return [*first, *capped_rows]


def predict(name: str, setting: Setting, folder: Path, percents: Sequence[int]) -> Iterator[Figures]:
    """Record a step, and write down its profile and a plan for each budget."""
    of = subject(name, setting)
    profile, plain, _ = record(of)
    static_bytes = profile.static.total_bytes
    yield "predicted", {"plain_peak_bytes": plain.peak_bytes, "plain_seconds": profile.plain_seconds}
    profile.save(folder / f"{name}.profile.json.gz")
    for percent in percents:
        budget_bytes = static_bytes + (plain.peak_bytes - static_bytes) * percent // 100
        plan, reached = plan_within(profile, budget_bytes)
        figures = {"peak_bytes": plan.peak_bytes, "overhead": plan.recompute_overhead, "within_budget": reached}
        yield "predicted", {f"{what} at {percent} %": figure for what, figure in figures.items()}
        plan.save(folder / f"{name}.{percent}.plan.json")


def capped(name: str, percent: int, setting: Setting, folder: Path) -> Iterator[Figures]:
    """Train under a plan that was made before, where the allocator gets no more than budget and margin."""
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
            "verdict": "exact" if plan.segments else "nothing recomputed",
        },
    )
    of = subject(name, setting)
    cuda = setting.device.type == "cuda"
    other_bytes = max(autockpt.measure(of.step, device=of.device).start_bytes - static_bytes, 0)
    cap_bytes = int(budget_bytes * (1 + MARGIN)) + other_bytes
    if cuda:
        torch.cuda.empty_cache()
        total_bytes = torch.cuda.get_device_properties(setting.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(cap_bytes / total_bytes, 1.0), setting.device)
    yield "measured", {"cap_bytes": cap_bytes, "other_bytes": other_bytes, "fits": False}
    with planned(of, plan) as step:
        for _ in range(STEPS):
            step()
        found = peak(of, profile)
    reserved = {"reserved_bytes": torch.cuda.max_memory_reserved(setting.device)} if cuda else {}
    fits = cuda or found["peak_bytes"] <= budget_bytes  # where nothing caps, what was measured has to say it
    yield "measured", {"fits": fits, "peak_bytes": found["peak_bytes"], **reserved}
    if cuda:
        torch.cuda.set_per_process_memory_fraction(1.0, setting.device)
    yield "measured", dict(pairs(of, partial(planned, of, plan), setting.pairs))
    yield "measured", dict(verdict(of, plan))
