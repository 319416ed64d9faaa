"""Stage 5, the frontier: what each method takes at its peak, ours at eight budgets, beside the plain step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from autockpt import Plan, Profile
from benchmarks.gpu.caps import predict
from benchmarks.gpu.methods import METHODS, Way
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import Setting, Subject, pairs, peak, planned, subject

__all__ = ["rows"]

MODELS = ("gpt2-large", "llama-1b")
PERCENTS = (90, 80, 70, 60, 50, 40, 30, 20)
TINY_PERCENTS = (60,)

SLOW = "torch.compile"
"""Comes last: it may take what is left of the time; at toy size it is left out: it would take more than all others."""


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the rows of stage 5: a process for each model, and at the end one for each that compiles."""
    names, percents = (MODELS, PERCENTS) if setting.size == "full" else (MODELS[:1], TINY_PERCENTS)
    jobs = [job for name in names for job in _of_model(name, percents, setting, folder)]
    slow = [method for method in METHODS if method.startswith(SLOW) and setting.size == "full"]
    return jobs + [_other(name, method, setting, folder) for method in slow for name in names]


def _of_model(name: str, percents: Sequence[int], setting: Setting, folder: Path) -> Iterator[Job]:
    """Yield the rows of a model: what is predicted, then others, then ours."""
    yield Job(name=f"predict {name}", run=partial(predict, name, setting, folder, percents), process=f"frontier {name}")
    for method in METHODS:
        if not method.startswith(SLOW):
            yield _other(name, method, setting, folder)
    for percent in percents:
        yield Job(
            name=f"{name}: autockpt, {percent} %",
            run=partial(_ours, name, percent, setting, folder),
            process=f"frontier {name}",
        )


def _other(name: str, method: str, setting: Setting, folder: Path) -> Job:
    process = f"{method} {name}" if method.startswith(SLOW) else f"frontier {name}"
    run = partial(_under, name, method, setting, folder)
    return Job(name=f"{name}: {method}", run=run, process=process)


def _ours(name: str, percent: int, setting: Setting, folder: Path) -> Iterator[Figures]:
    plan = Plan.load(folder / f"{name}.{percent}.plan.json")
    yield "predicted", {"peak_bytes": plan.peak_bytes, "overhead": plan.recompute_overhead}
    yield from _measured(name, partial(planned, plan=plan), setting, folder)


def _under(name: str, method: str, setting: Setting, folder: Path) -> Iterator[Figures]:
    yield from _measured(name, METHODS[method](), setting, folder)


def _measured(name: str, way: Way, setting: Setting, folder: Path) -> Iterator[Figures]:
    """Measure the peak of a step, then pairs of steps."""
    profile = Profile.load(folder / f"{name}.profile.json.gz")
    of: Subject = subject(name, setting)
    with way(of) as step:
        step()
        found = peak(of, profile, step)["peak_bytes"]
    yield "measured", {"peak_bytes": found, "added_bytes": found - profile.static.total_bytes}
    yield "measured", dict(pairs(of, partial(way, of), setting.pairs))
