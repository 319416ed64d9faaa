"""Rank three ways to take a step by `fit`, write that down, and then measure them on this CPU.

The ways: the whole batch plain; the fastest equal microbatches that fit a smaller memory, plain; the whole batch under
the plan that fits it. All three take turns in one process, on copies of one model, in seconds of the processor.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt._data.hardware.devices import CONTEXT_BYTES, MARGIN
from benchmarks.environment import environment, table, with_steady_allocator, write
from benchmarks.models import SMALL, build
from tests.zoo import loss_of

FOLDER = Path(__file__).parent
MODELS = ("gpt2", "bert", "llama")
SHARE = 0.6
"""Of what lies between the lowest peak and that of the plain step, the memory that there is."""
ROUNDS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(SMALL))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with_steady_allocator()
    torch.set_num_threads(1)
    cases = {name: build(name) for name in arguments.models}
    ways = {name: predicted(case) for name, case in cases.items()}
    said = {name: {way: found.samples_per_second for way, found in each.items()} for name, each in ways.items()}
    (FOLDER / "predicted.json").write_text(json.dumps({"environment": environment(), "models": said}, indent=1) + "\n")
    raw: dict[str, Any] = {}
    for name, case in cases.items():
        seconds = measured(case, ways[name], arguments.rounds)
        samples = _samples(case)
        raw[name] = {way: {"predicted": said[name][way], "measured": samples / seconds[way]} for way in seconds}
        raw[name]["microbatches"] = ways[name]["accumulated"].microbatches
    write(FOLDER, {"rounds": arguments.rounds, "models": raw}, report(raw))


def predicted(case: Any) -> dict[str, Any]:
    """Return the three ways as `fit` has them, by name."""
    profile = autockpt.profile(case.model, case.kwargs)
    plan = autockpt.solve(profile, "min")
    memory = int(plan.peak_bytes + SHARE * (profile.plain_peak_bytes - plan.peak_bytes))
    gigabytes = (memory + CONTEXT_BYTES) / (1 - MARGIN) / 1e9
    (row,) = autockpt.fit(profile, f"{gigabytes:.3f}GB", samples=_samples(case)).rows
    found = {
        "plain": next(way for way in row.ways if way.kind == "plain" and way.microbatches == 1),
        "accumulated": next(way for way in row.ways if way.kind == "plain" and way.microbatches > 1 and way.fits),
        "planned": next(way for way in row.ways if way.kind == "planned" and way.microbatches == 1 and way.fits),
    }
    assert not found["plain"].fits
    return found


def measured(case: Any, ways: dict[str, Any], rounds: int) -> dict[str, float]:
    """Return seconds of the processor a step takes in each way, the median; ways take turns."""
    steps = {name: _step(case, way) for name, way in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name in list(steps)[:: -1 if number % 2 else 1]:
            began = time.process_time()
            steps[name]()
            if number >= 2:  # the first rehearse
                found[name].append(time.process_time() - began)
    return {name: statistics.median(each) for name, each in found.items()}


def _step(case: Any, way: Any) -> Callable[[], None]:
    model = copy.deepcopy(case.model)
    if way.plan is not None:
        autockpt.apply(model, plan=way.plan)
    each = _samples(case) // way.microbatches
    parts = [
        {name: value[first : first + each] for name, value in case.kwargs.items()}
        for first in range(0, _samples(case), each)
    ]

    def step() -> None:
        for part in parts:
            (loss_of(model(**part)) / len(parts)).backward()
        for parameter in model.parameters():
            parameter.grad = None

    return step


def _samples(case: Any) -> int:
    return len(next(iter(case.kwargs.values())))


def report(raw: dict[str, Any]) -> str:
    """Lay out samples a second, and whether the order is the same."""
    rows = []
    for name, found in raw.items():
        ways = [way for way in found if way != "microbatches"]
        orders = [sorted(ways, key=lambda way: -found[way][figure]) for figure in ("predicted", "measured")]
        for way in ways:
            rows.append(
                [
                    name,
                    f"{way}, {found['microbatches']} microbatches" if way == "accumulated" else way,
                    f"{found[way]['predicted']:.3g}",
                    f"{found[way]['measured']:.3g}",
                    f"{orders[0].index(way) + 1}, {orders[1].index(way) + 1}",
                ]
            )
    heads = ["model", "way", "samples a second, predicted", "measured", "place predicted, measured"]
    return table(heads, rows)


if __name__ == "__main__":
    main()
