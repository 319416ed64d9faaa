"""Train on batches of fifty random lengths inside a budget; hold every step, and all of them together, against plain.

Two copies of a model see the same batches: one plain, one under `autockpt.apply(model, budget)`, which gets no other
hint. What recording, timing and planning cost is read on further copies: the seconds of all fifty steps beyond those of
the plain ones, and of it what was spent on plans, in seconds of the one thread that works.
"""

from __future__ import annotations

import argparse
import copy
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

READINGS = 3
"""Of what the fifty steps cost, on a copy of the model each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(TEXT), choices=list(TEXT))
    torch.set_num_threads(1)
    models = {name: run_model(name) for name in parser.parse_args().models}
    write(Path(__file__).parent / "ragged", {"lengths": LENGTHS, "budget": BUDGET, "models": models}, report(models))


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
    plan = None
    with heard() as said:
        for seed, length in enumerate(LENGTHS):
            said.clear()
            loss, _ = step(planned, length, seed)
            how = [word for word in ("recorded", "timed", "planned") if any(line.startswith(word) for line in said)]
            row = {"length": length, "loss_is_plain": loss == step(plain, length, seed)[0], "how": how}
            before, plan = plan, autockpt.plan_of(planned)
            row["new_plan"] = plan is not before
            # Where it would be recorded or timed once more it is spilled: a profiler runs.
            row["peak_bytes"] = peak_bytes(planned, length, seed)
            steps.append(row)
    assert plan is not None and plan.segments, "the budget asks for nothing: no plan recomputes"
    del planned
    readings = [all_steps(plain, budget_bytes) for _ in range(READINGS)]
    print(name, readings, flush=True)
    overhead = plan.recompute_overhead
    return {"budget_bytes": budget_bytes, "steps": steps, "overhead": overhead, "readings": readings}


@contextmanager
def heard() -> Iterator[list[str]]:
    """Hear what autockpt says."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("autockpt")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def all_steps(plain: nn.Module, budget_bytes: int) -> dict[str, float]:
    """Train on all lengths, plain and planned, on copies of a model."""
    twin, planned = copy.deepcopy(plain), autockpt.apply(copy.deepcopy(plain), budget_bytes)
    with heard() as said:
        seconds = {"plain": 0.0, "planned": 0.0}
        for seed, length in enumerate(LENGTHS):
            seconds["plain"] += step(twin, length, seed)[1]
            seconds["planned"] += step(planned, length, seed)[1]
    plans = [line for line in said if line.startswith("planned in ")]
    spilled = sum(line.startswith(("recorded", "timed")) for line in said)
    planning = sum(float(line.split()[2]) for line in plans)
    return {**seconds, "planning": planning, "plans": len(plans), "spilled": spilled}


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
    """Lay out whether all steps kept the budget, and what they cost together."""
    rows = []
    for name, model in models.items():
        steps, readings = model["steps"], model["readings"]
        middle = sorted(readings, key=lambda each: each["planned"] / each["plain"])[len(readings) // 2]
        rows.append(
            [
                name,
                f"{model['budget_bytes'] / 1e6:.1f} MB",
                f"{sum(row['peak_bytes'] <= model['budget_bytes'] for row in steps)} of {len(steps)}",
                f"{sum(row['loss_is_plain'] for row in steps)} of {len(steps)}",
                f"{middle['plans']:.0f}",
                f"{middle['spilled']:.0f}",
                f"{middle['planned'] / middle['plain']:.2f}",
                f"{(middle['planned'] - middle['planning']) / middle['plain']:.2f}",
                f"{model['overhead']:.1%}",
            ]
        )
    heads = [
        "model",
        "budget",
        "within",
        "loss is the plain one",
        "plans",
        "steps recorded or timed",
        "seconds of all steps over plain",
        "the same without planning",
        "last plan's overhead",
    ]
    return table(heads, rows)


if __name__ == "__main__":
    main()
