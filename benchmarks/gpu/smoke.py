"""Stage 1, then: a step recorded by itself, and a plan that is given: does what was predicted happen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import autockpt
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import DETERMINISTIC, Setting, pairs, peak, plan_within, planned, record, subject, verdict

__all__ = ["rows"]

MODELS = ("gpt2-small", "resnet-50", "llama-100m")

SHARE = 0.6
"""The budget: so much of what the plain step adds."""

ROWS, WIDTH = 1021, 4096
KNOWN_BYTES = ROWS * WIDTH * 4
ROUNDING_BYTES = 2 * 2**20


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the rows, the small ones first; a model has a process of its own."""
    models = [
        Job(
            name=f"{name}: given plan",
            run=partial(whole, name, setting),
            process=f"plan {name}",
            environment=DETERMINISTIC,
        )
        for name in (MODELS if setting.size == "full" else MODELS[1:2])
    ]
    first = Job(
        name="allocations",
        run=partial(allocations, setting.device),
        process=models[0].process,
        environment=DETERMINISTIC,
    )
    return [first, *models]


def allocations(device: torch.device) -> Iterator[Figures]:
    """Record a step that makes a tensor of a known size, and look for it."""
    yield "predicted", {"tensor_bytes": KNOWN_BYTES}
    model = torch.nn.Sequential(torch.nn.Linear(16, WIDTH), torch.nn.Tanh()).to(device)
    profile = autockpt.profile(model, torch.ones(ROWS, 16, device=device))
    near = [size for size in profile.tensors.bytes if 0 <= size - KNOWN_BYTES < ROUNDING_BYTES]
    yield "measured", {"tensor_bytes": min(near, default=0), "allocations": len(profile.tensors.bytes)}
    if not near:
        raise LookupError(f"no allocation of {KNOWN_BYTES:,} bytes among the {len(profile.tensors.bytes)} recorded")


def whole(name: str, setting: Setting) -> Iterator[Figures]:
    """Profile, plan, apply, measure, verify."""
    of = subject(name, setting)
    profile, plain, recording_seconds = record(of)
    static_bytes = profile.static.total_bytes
    began = time.perf_counter()
    budget_bytes = static_bytes + int((plain.peak_bytes - static_bytes) * SHARE)
    plan, reached = plan_within(profile, budget_bytes, setting)
    solving_seconds = time.perf_counter() - began
    yield (
        "predicted",
        {
            "plain_peak_bytes": plain.peak_bytes,
            "plain_seconds": profile.plain_seconds,
            "budget_bytes": budget_bytes,
            "peak_bytes": plan.peak_bytes,
            "overhead": plan.recompute_overhead,
            "verdict": "exact" if plan.segments else "nothing recomputed",
            "within_budget": reached,
            "segments": len(plan.segments),
            "static_bytes": static_bytes,
        },
    )
    yield "measured", {"recording_seconds": recording_seconds, "solving_seconds": solving_seconds}
    found = peak(of, profile)
    yield "measured", {"plain_peak_bytes": found["peak_bytes"], "other_bytes": found["other_bytes"]}
    with planned(of, plan) as step:
        step()
        inside = peak(of, profile)["peak_bytes"]
    yield "measured", {"peak_bytes": inside, "within_budget": inside <= budget_bytes}
    yield "measured", dict(pairs(of, partial(planned, of, plan), setting.pairs))
    yield "measured", dict(verdict(of, plan))
