"""Time steps of a small Llama under a plan of single functions, beside other ways to recompute: the host's time alone.

``plan.json`` was made as for a GPU: from a profile of a Llama of 100 M that was recorded in fake mode for an H100, for
about half of what the plain step adds. Inside each block it keeps or skips single functions. Here it is put on a twin
of the same names, whose tensors are so small that nearly all of a step is the host's time. Seconds are those of the
processor in all threads, so that other processes count for little.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autockpt
from autockpt import Plan, Segment
from benchmarks.environment import table, write
from benchmarks.gpu.models import llama

FOLDER = Path(__file__).with_suffix("")
PLAN = FOLDER / "plan.json"
LAYERS = 12
ROUNDS, COLD = 60, 4
SHARE = 0.53

Batch = dict[str, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--make-plan", action="store_true", help="make plan.json anew, and time nothing")
    parser.add_argument("--dry", action="store_true", help="print the table, and write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.make_plan:
        made_plan().save(PLAN)
        return
    steps = {name: step_of(way, arguments.device) for name, way in ways(Plan.load(arguments.plan)).items()}
    found = time_steps(steps, arguments.rounds)
    if arguments.dry:
        print(report(found))
    else:
        write(FOLDER, {"ways": found}, report(found))


def made_plan() -> Plan:
    """Record the full size in fake mode, and plan for a share of what its plain step adds."""
    with torch.device("meta"):
        model, batch = llama(LAYERS, 768, 12, 2048, 8, 1024)
    model = model.to(torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters())
    profile = autockpt.profile(model, batch, mode="fake", device="h100", optimizer=optimizer)
    static_bytes = profile.static.total_bytes
    added_bytes = autockpt.solve(profile, 2**60).peak_bytes - static_bytes
    return autockpt.solve(profile, static_bytes + int(added_bytes * SHARE), seconds=20)


def ways(plan: Plan) -> dict[str, Callable[[nn.Module], object]]:
    """Return by name what is to be timed; each makes a model run its way."""
    blocks = Plan(segments=tuple(Segment(calls=(f"model.layers.{i}#0",), buffers=()) for i in range(LAYERS)))

    def by_torch(model: Any) -> None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    return {
        "plain": lambda model: None,
        "blocks run twice": run_twice,
        "plan of functions": lambda model: autockpt.apply(model, plan=plan, check="never"),
        "plan of functions, checked": lambda model: autockpt.apply(model, plan=plan),
        "plan of blocks": lambda model: autockpt.apply(model, plan=blocks, check="never"),
        "plan of blocks, checked": lambda model: autockpt.apply(model, plan=blocks),
        "torch.utils.checkpoint": by_torch,
    }


def run_twice(model: Any) -> None:
    """Run every block once more as backward comes to it: the least that recomputing it can cost."""
    for block in model.model.layers:
        block.forward = _twice(block.forward)


def _twice(own: Callable[..., Any]) -> Callable[..., Any]:
    def forward(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out = own(hidden, *args, **kwargs)
        given = hidden.detach().requires_grad_()

        def again(_: torch.Tensor) -> None:
            with torch.enable_grad():
                own(given, *args, **kwargs)

        out.register_hook(again)
        return out

    return forward


def step_of(way: Callable[[nn.Module], object], device: str) -> Callable[[], tuple[float, float]]:
    """Return a step that says how long its forward and its backward took, after some that count for nothing."""
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")  # transformers warns about configurations, and renames
        model, batch = llama(LAYERS, 64, 4, 128, 2, 32, 1000)
        model = model.to(torch.bfloat16).train()
        way(model)

    def step() -> tuple[float, float]:
        began = time.process_time()
        loss = model(**batch).loss
        middle = time.process_time()
        loss.backward()
        ended = time.process_time()
        model.zero_grad()
        return middle - began, ended - middle

    for _ in range(COLD):
        step()
    return step


def time_steps(steps: dict[str, Callable[[], tuple[float, float]]], rounds: int) -> dict[str, dict[str, float]]:
    """Return, for each way, medians of steps taken in turns, and what neighbours differ by from the plain one."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for name in list(steps)[:: -1 if number % 2 else 1]:
                found[name].append(steps[name]())
            gc.collect()
    finally:
        gc.enable()
    return {name: _beside(own, found["plain"]) for name, own in found.items()}


def _beside(own: list[tuple[float, float]], plain: list[tuple[float, float]]) -> dict[str, float]:
    pairs = list(zip(own, plain, strict=True))
    return {
        "step_seconds": statistics.median(map(sum, own)),
        "over_plain": statistics.median(sum(one) / sum(other) for one, other in pairs),
        "forward_seconds_a_block": statistics.median(one[0] - other[0] for one, other in pairs) / LAYERS,
        "backward_seconds_a_block": statistics.median(one[1] - other[1] for one, other in pairs) / LAYERS,
    }


def report(found: dict[str, dict[str, float]]) -> str:
    rows = [
        [
            name,
            f"{each['step_seconds'] * 1e3:.1f}",
            f"{each['over_plain']:.2f}",
            f"{each['forward_seconds_a_block'] * 1e6:.0f}",
            f"{each['backward_seconds_a_block'] * 1e6:.0f}",
        ]
        for name, each in found.items()
    ]
    return table(["step", "ms", "over plain", "forward, µs more a block", "backward, µs more a block"], rows)


if __name__ == "__main__":
    main()
