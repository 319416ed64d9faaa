"""Time what recomputing a call costs the host, against `torch.utils.checkpoint` on the same modules."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import table, write
from benchmarks.host_cost.blocks import BLOCKS, Stack, batch
from benchmarks.host_cost.calls import count_block
from benchmarks.host_cost.ways import DEPTH, NEVER, SAMPLED, settings

ROUNDS = 60
STEPS, COLD_STEPS = 12, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # On a CPU all of a step runs in this thread, so seconds of the processor leave out what other processes take.
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    raw = {name: time_block(name, arguments.rounds, arguments.device, clock) for name in BLOCKS}
    calls = {name: count_block(name, arguments.device) for name in BLOCKS}
    rows = []
    for name, costs in raw.items():
        for which, cost in costs.items():
            total = cost["forward"] + cost["backward"]
            ours = [costs[each]["forward"] + costs[each]["backward"] for each in (SAMPLED, NEVER)]
            ratios = [f"{each / total:.2f}" if which.startswith("torch") else "" for each in ours]
            seconds = [f"{cost['forward']:.0f}", f"{cost['backward']:.0f}", f"{total:.0f}"]
            rows.append([name, which, *seconds, f"{calls[name][which]['python']:.0f}", *ratios])
    heads = ["block", "recomputed by", "forward, µs", "backward, µs", "both, µs", "Python calls"]
    text = table([*heads, "sampled / this", "never / this"], rows)
    write(Path(__file__).parent, {"microseconds_per_call": raw, "calls_per_call": calls}, text)


def time_block(
    name: str, rounds: int, device: str, clock: Callable[[], float] = time.perf_counter
) -> dict[str, dict[str, float]]:
    """Return, for each setting, microseconds a call over the plain step, forward and backward.

    Args:
        name: of the block.
        rounds: how often every setting takes its turn: some steps until the interpreter has specialised its code
            for the setting, and then those that count.
        device: where the tensors are.
        clock: of the wall, or of the processor, in which other processes count for little.
    """
    torch.manual_seed(0)
    stack, inputs = Stack(BLOCKS[name], DEPTH).to(device), batch(device)
    ways = settings()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for way, make in ways.items():
                make(stack)
                steps = [time_step(stack, inputs, clock) for _ in range(STEPS)][COLD_STEPS:]
                found[way].append((statistics.median(s[0] for s in steps), statistics.median(s[1] for s in steps)))
            gc.collect()
    finally:
        gc.enable()
    return {way: net(found[way], found) for way in ways if way not in ("plain", "forward run twice")}


def net(steps: list[tuple[float, float]], found: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Return the medians over the rounds of what a setting's calls cost over the plain ones."""
    kept = steps is found["autockpt, kept calls"]
    forward, backward = [], []
    for (plain_forward, plain_backward), (_, twice_backward), (all_forward, all_backward), own in zip(
        found["plain"], found["forward run twice"], found[SAMPLED], steps, strict=True
    ):
        own_forward, own_backward = own
        extra_forward, extra_backward = own_forward - plain_forward, own_backward - plain_backward
        if kept:  # one call in this stack is recomputed
            forward.append((extra_forward - (all_forward - plain_forward) / DEPTH) / (DEPTH - 1))
            backward.append((extra_backward - (all_backward - plain_backward) / DEPTH) / (DEPTH - 1))
        else:
            forward.append(extra_forward / DEPTH)
            backward.append((own_backward - twice_backward) / DEPTH)
    return {"forward": statistics.median(forward) * 1e6, "backward": statistics.median(backward) * 1e6}


def time_step(stack: Stack, inputs: tuple[Any, ...], clock: Callable[[], float]) -> tuple[float, float]:
    """Run a step; return the host's seconds in forward and in backward."""
    began = clock()
    out = stack(*inputs)
    middle = clock()
    loss = out.sum()
    del out
    start = clock()
    loss.backward()
    end = clock()
    if loss.is_cuda:
        torch.cuda.synchronize()
    return middle - began, end - start


if __name__ == "__main__":
    main()
