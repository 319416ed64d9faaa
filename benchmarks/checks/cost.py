"""Count the CPU seconds inside the checks of a planned step, and of a rehearsed one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from transformers import ResNetConfig, ResNetForImageClassification

import autockpt
from autockpt import Infeasible, Plan, Profile
from autockpt._run.compare import check, checks, expected
from benchmarks.environment import table
from tests import zoo
from tests.zoo import Case, gpt2, loss_of, tokens

STEPS = 20
"""Averaged over: every segment of a plan that has so many is checked once."""

REHEARSALS = 3

GOALS = {"sampled, large": 0.015, "sampled, zoo": 0.03, "rehearsed": 1.6}


def gpt2_384() -> Case:
    return Case(gpt2(n_layer=6, n_embd=384, n_head=6).train(), tokens(500, 8, 128))


def resnet50_160() -> Case:
    batch = {"pixel_values": torch.randn(8, 3, 160, 160), "labels": torch.randint(2, (8,))}
    return Case(ResNetForImageClassification(ResNetConfig()).train(), batch)


MODELS: dict[str, Callable[[], Case]] = {
    "GPT-2 6 × 384": gpt2_384,
    "ResNet-50 8 × 160²": resnet50_160,
    "GPT-2 of the zoo": partial(zoo.build, "gpt2"),
    "ResNet-50 of the zoo": partial(zoo.build, "resnet50"),
}


def run(asked: list[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run each model at both budgets, and yield the rows."""
    torch.set_num_threads(1)
    for name in asked or MODELS:
        torch.manual_seed(0)
        case = MODELS[name]()
        case.step()
        profile = autockpt.profile(case.model, case.kwargs, loss=loss_of)
        for budget in ("min", "half"):
            yield f"{name}, {budget}", run_plan(case, plan_for(profile, budget))


def plan_for(profile: Profile, budget: str) -> Plan:
    """The lowest plan, or the one within half of what the plain step adds."""
    lowest = autockpt.solve(profile, "lowest")
    if budget == "min":
        return lowest
    static_bytes = profile.static.total_bytes
    try:
        return autockpt.solve(profile, (static_bytes + lowest.plain_peak_bytes) // 2)
    except Infeasible:
        return lowest


def run_plan(case: Case, plan: Plan) -> dict[str, Any]:
    """Time the steps of one plan: unchecked, sampled, all checked, and rehearsed."""
    row: dict[str, Any] = {"segments": len(plan.segments), "goals": GOALS}
    rehearsed = []
    for how in ("never", "sampled", "always"):
        seconds, inside = [], []
        for _ in range(REHEARSALS if how == "sampled" else 1):
            autockpt.apply(case.model, plan=plan, check=how)
            first = cpu_seconds(case.step)
            if how == "sampled":
                rehearsed.append(first)
        for _ in range(STEPS):
            with clocked() as spent:
                seconds.append(cpu_seconds(case.step))
            inside.append(sum(spent))
        row[how] = {"step_seconds": seconds, "check_seconds": inside}
        autockpt.remove(case.model)
    return row | {"rehearsed_seconds": rehearsed}


def cpu_seconds(step: Callable[[], object]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


@contextmanager
def clocked() -> Iterator[list[float]]:
    """Collect the CPU seconds of all that checks do beside a replay."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent.append(time.thread_time() - began)

        return wrapped

    with ExitStack() as stack:
        for owner, name in (
            (checks.ReplayChecks, "replayer"),
            (check.Check, "begins"),
            (check.Check, "ends"),
            (check.Check, "saves"),
            (expected.Expected, "take"),
            (check, "_unlike"),
        ):
            stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))
        yield spent


def shares(row: dict[str, Any]) -> dict[str, float]:
    """Of the seconds of the steps those inside the checks; and the rehearsed step in planned ones."""
    found = {
        check: sum(row[check]["check_seconds"]) / sum(row[check]["step_seconds"]) for check in ("sampled", "always")
    }
    planned = statistics.median(row["never"]["step_seconds"])
    return found | {"rehearsed": statistics.median(row["rehearsed_seconds"]) / planned}


def show(rows: dict[str, dict[str, Any]]) -> str:
    """The summary, and a line for each model and budget."""
    found = {name: shares(row) for name, row in rows.items()}
    large = [each["sampled"] for name, each in found.items() if "zoo" not in name]
    small = [each["sampled"] for name, each in found.items() if "zoo" in name]
    rehearsed = [each["rehearsed"] for each in found.values()]
    summary = (
        f"Sampled: at most {max(large, default=0):.2%} of a step on the large models "
        f"(goal {GOALS['sampled, large']:.1%}), {max(small, default=0):.2%} on the zoo's "
        f"(goal {GOALS['sampled, zoo']:.1%}). "
        f"A rehearsed step: at most {max(rehearsed):.2f} planned ones (goal {GOALS['rehearsed']})."
    )
    heads = ["model, budget", "segments", "planned step", "sampled", "always", "rehearsed / planned step"]
    lines = [
        [
            name,
            row["segments"],
            f"{statistics.median(row['never']['step_seconds']) * 1e3:.0f} ms",
            f"{found[name]['sampled']:.2%}",
            f"{found[name]['always']:.1%}",
            f"{found[name]['rehearsed']:.2f}",
        ]
        for name, row in rows.items()
    ]
    return f"{summary}\n\n{table(heads, lines)}"
