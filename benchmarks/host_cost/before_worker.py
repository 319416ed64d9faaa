"""Time what steps cost the host with whatever autockpt this interpreter imports. Run by `before.py`.

    python before_worker.py CHECKOUT ROUNDS

The models come from the checkout, the library from the environment: the folder that holds both comes last on the path.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import autockpt  # before the checkout is on the path

STEPS, FIRST_PLANNED = 12, 5
BLOCK_ROUNDS = 5

Build = Callable[[], Any]


def main() -> None:
    checkout, rounds = sys.argv[1], int(sys.argv[2])
    sys.path.append(checkout)
    from benchmarks.host_cost.blocks import BLOCKS
    from benchmarks.host_cost.run import time_block

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of transformers
    calls = {}
    for name in BLOCKS:
        ways = time_block(name, BLOCK_ROUNDS, "cpu", time.process_time)
        calls[name] = {
            way: ways[way]["forward"] + ways[way]["backward"] for way in ("autockpt", "autockpt, kept calls")
        }
    print(json.dumps({"calls": calls, "steps": {name: time_loop(build, rounds) for name, build in loops().items()}}))


def loops() -> dict[str, Build]:
    """Return by name what makes a model, its batch and a pattern of every second block, which are recomputed."""
    from benchmarks.gpu.models import llama
    from benchmarks.host_cost.blocks import BLOCKS, Stack, batch

    def stack() -> Any:
        hidden, mask = batch("cpu")
        return Stack(BLOCKS["transformer block"], 16), {"hidden": hidden, "mask": mask}, "blocks.*[02468]"

    def small_llama() -> Any:
        return *llama(12, 64, 4, 128, 2, 32, 1000), "model.layers.*[02468]"

    return {"16 transformer blocks": stack, "Llama, 12 layers": small_llama}


def time_loop(build: Build, rounds: int) -> dict[str, float]:
    """Return seconds of the processor, medians over the rounds, of a plain step, the first three and a planned one."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        torch.manual_seed(0)
        model, batch, pattern = build()
        model.train()
        plain = seconds_of_steps(model, batch)
        autockpt.apply(model, budget="4GB", recompute=pattern)
        ours = seconds_of_steps(model, batch)
        plan = autockpt.plan_of(model)
        assert plan is not None and plan.segments
        autockpt.remove(model)
        steps = {
            "plain": statistics.median(plain[FIRST_PLANNED:]),
            "recorded": ours[0],
            "timed": ours[1],
            "rehearsed, with planning": ours[2],
            "planned": statistics.median(ours[FIRST_PLANNED:]),
        }
        for name, value in steps.items():
            found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def seconds_of_steps(model: Any, batch: Any) -> list[float]:
    """Train for some steps; each ends as the next begins, which is when the library learns that it is over."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(STEPS + 1):
            times.append(time.process_time())
            out = model(**batch)
            loss = out.loss if hasattr(out, "loss") else out.square().sum()
            del out
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        gc.enable()
    return [after - before for before, after in itertools.pairwise(times)]


if __name__ == "__main__":
    main()
