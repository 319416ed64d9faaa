"""Train on batches of fifty random lengths inside a budget; hold every step, and what each plan costs, against plain.

Two copies of a model see the same batches: one plain, one under `autockpt.apply(model, budget)`, which gets no other
hint. What plans cost is read on further copies, which see one batch of each length that made a plan: what such a step
takes beyond the same step once more, in plain steps of that length, all in seconds of the one thread that works.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autockpt
from benchmarks.environment import table, write
from benchmarks.models import TEXT
from tests.end_to_end.reference import storage_bytes
from tests.zoo import tokens

LENGTHS = random.Random(0).choices(range(32, 257), k=50)

LONGEST = 256

BUDGET = 0.6
"""Of the peak of a plain step of the longest batch."""

MOST_PLANS = 6

MOST_STEPS = 2.0
"""That a plan after the first may take."""

READINGS = 5
"""Of what each plan costs, on a copy of the model each."""

REPEATS = 3
"""Of the steps that a reading is held against."""

FILE_BYTES = 2 << 30
"""Written before every step that is timed for its plan. A virtual machine takes memory from its host when it is first
touched, ten times slower than it is written later, and gives back what has been free for some seconds: what the cache
of files takes for a recorded step's saves would be the time of the host, a third of a step for T5, and no work of
planning."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(TEXT), choices=list(TEXT))
    torch.set_num_threads(1)
    models = {name: run_model(name) for name in parser.parse_args().models}
    write(Path(__file__).parent / "ragged", {"lengths": LENGTHS, "budget": BUDGET, "models": models}, report(models))


def touch_file_cache() -> None:
    """Let the machine's file cache have held something just now."""
    block = bytes(8 << 20)
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(FILE_BYTES // len(block)):
            file.write(block)


def run_model(name: str) -> dict[str, Any]:
    """Train on all lengths, and read what the plans cost that this made."""
    torch.manual_seed(0)
    plain = TEXT[name](LONGEST)[0].train()
    planned = copy.deepcopy(plain)
    twin_bytes = storage_bytes([*plain.parameters(), *plain.buffers()])  # alive beside every measured step

    def peak_bytes(model: nn.Module, length: int, seed: int) -> int:
        return autockpt.measure(lambda: step(model, length, seed)).peak_bytes - twin_bytes

    step(plain, LONGEST, 0)
    budget_bytes = round(BUDGET * peak_bytes(plain, LONGEST, 0))
    autockpt.apply(planned, budget_bytes)
    steps: list[dict[str, Any]] = []
    plans: list[dict[str, Any]] = []
    for seed, length in enumerate(LENGTHS):
        before = autockpt.plan_of(planned)
        loss, _ = step(planned, length, seed)
        plan = autockpt.plan_of(planned)
        assert plan is not None
        row = {"length": length, "loss_is_plain": loss == step(plain, length, seed)[0]}
        row["peak_bytes"] = peak_bytes(planned, length, seed)
        steps.append(row)
        if plan is not before:
            made = {"recompute_overhead": plan.recompute_overhead, "segments": len(plan.segments)}
            plans.append({"length": length, **made})
    lengths = [plan["length"] for plan in plans]
    readings = [planning_costs(plain, budget_bytes, lengths) for _ in range(READINGS)]
    for row, read in zip(plans, zip(*readings, strict=True), strict=True):
        row["readings"] = read
        print(name, cost_cell(row), flush=True)
    return {"budget_bytes": budget_bytes, "steps": steps, "plans": plans}


def planning_costs(plain: nn.Module, budget_bytes: int, lengths: list[int]) -> list[dict[str, float]]:
    """Read what the plan for each of these lengths costs, on a copy of a model that has no plan yet."""
    planned = autockpt.apply(copy.deepcopy(plain), budget_bytes)
    costs = []
    for seed, length in enumerate(lengths):
        before = autockpt.plan_of(planned)
        touch_file_cache()
        _, seconds = step(planned, length, seed)
        assert autockpt.plan_of(planned) is not before, "no plan was made, and nothing measured"
        again, beside = (
            statistics.median(step(model, length, seed)[1] for _ in range(REPEATS)) for model in (planned, plain)
        )
        costs.append(
            {
                "plain_seconds": beside,
                "planned_seconds": again,
                "planning_seconds": seconds - again,
                "planning_steps": (seconds - again) / beside,
            }
        )
    return costs


def step(model: nn.Module, length: int, seed: int) -> tuple[float, float]:
    """Train on one batch without an optimizer; return the loss, and the thread's seconds."""
    torch.manual_seed(seed)
    batch = tokens(1000, 8, length)
    began = time.thread_time()
    loss = model(**batch).loss
    loss.backward()
    seconds = time.thread_time() - began
    model.zero_grad()
    return loss.item(), seconds


def report(models: dict[str, Any]) -> str:
    """Lay out what each model's plans cost, and whether all steps kept the budget."""
    rows, later = [], []
    for name, model in models.items():
        steps, plans = model["steps"], model["plans"]
        assert plans[-1]["segments"], "the budget asks for nothing: no plan recomputes"
        later += [planning_steps(plan) for plan in plans[1:]]
        rows.append(
            [
                name,
                f"{model['budget_bytes'] / 1e6:.1f} MB",
                f"{sum(row['peak_bytes'] <= model['budget_bytes'] for row in steps)} of {len(steps)}",
                f"{sum(row['loss_is_plain'] for row in steps)} of {len(steps)}",
                "; ".join(cost_cell(plan) for plan in plans),
                f"{plans[-1]['recompute_overhead']:.1%}",
            ]
        )
    most = max(len(model["plans"]) for model in models.values())
    medians = [statistics.median(each) for each in later]
    summary = (
        f"At most {most} plans a model (goal: {MOST_PLANS}); of the plans after the first "
        f"{sum(cost < MOST_STEPS for cost in medians)} of {len(medians)} cost less than {MOST_STEPS:g} plain steps in "
        f"the median of {READINGS} readings, the dearest {max(medians, default=0.0):.2f}; the highest reading is "
        f"{max((max(each) for each in later), default=0.0):.2f}."
    )
    heads = [
        "model",
        "budget",
        "within",
        "loss is the plain one",
        "length: plain steps per plan, median (lowest to highest)",
        "last plan's overhead",
    ]
    return f"{summary}\n\n{table(heads, rows)}"


def planning_steps(plan: dict[str, Any]) -> list[float]:
    """What a plan cost, in plain steps, reading by reading."""
    return [reading["planning_steps"] for reading in plan["readings"]]


def cost_cell(plan: dict[str, Any]) -> str:
    """A plan in the table."""
    cost = planning_steps(plan)
    return f"{plan['length']}: {statistics.median(cost):.2f} ({min(cost):.2f} to {max(cost):.2f})"


if __name__ == "__main__":
    main()
