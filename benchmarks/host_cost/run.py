"""Time what recomputing a call costs the host, against `torch.utils.checkpoint` on the same modules."""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Plan, Segment
from benchmarks.environment import table, write
from benchmarks.host_cost.blocks import BLOCKS, Stack, batch

DEPTH = 16
ROUNDS = 60
STEPS, COLD_STEPS = 12, 4
SAMPLED, NEVER = "autockpt", 'autockpt, check="never"'

torch_checkpoint = functools.partial(checkpoint, use_reentrant=False)
Setting = Callable[[Stack], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # On a CPU all of a step runs in this thread, so seconds of the processor leave out what other processes take.
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    raw = {name: time_block(name, arguments.rounds, arguments.device, clock) for name in BLOCKS}
    rows = []
    for name, costs in raw.items():
        for which, cost in costs.items():
            total = cost["forward"] + cost["backward"]
            ours = [costs[each]["forward"] + costs[each]["backward"] for each in (SAMPLED, NEVER)]
            ratios = [f"{each / total:.2f}" if which.startswith("torch") else "" for each in ours]
            rows.append([name, which, f"{cost['forward']:.0f}", f"{cost['backward']:.0f}", f"{total:.0f}", *ratios])
    heads = ["block", "recomputed by", "forward, µs", "backward, µs", "both, µs", "sampled / this", "never / this"]
    write(Path(__file__).parent, {"microseconds_per_call": raw}, table(heads, rows))


def settings() -> dict[str, Setting]:
    """Return by name what is to be timed; each makes a stack run its way."""

    def plain(stack: Stack) -> None:
        autockpt.remove(stack)
        stack.call = None

    def planned(stack: Stack, blocks: range, check: Literal["sampled", "never"] = "sampled") -> None:
        plain(stack)
        autockpt.apply(stack, plan=Plan(segments=tuple(_segment(stack, number) for number in blocks)), check=check)

    def peer(stack: Stack, preserve: bool) -> None:
        plain(stack)
        stack.call = functools.partial(torch_checkpoint, preserve_rng_state=preserve)

    def twice(stack: Stack) -> None:
        plain(stack)
        stack.call = forward_again

    return {
        "plain": plain,
        "forward run twice": lambda stack: twice(stack),
        SAMPLED: lambda stack: planned(stack, range(DEPTH)),
        NEVER: lambda stack: planned(stack, range(DEPTH), "never"),
        "autockpt, kept calls": lambda stack: planned(stack, range(DEPTH - 1, DEPTH)),
        "torch": lambda stack: peer(stack, True),
        "torch, preserve_rng_state=False": lambda stack: peer(stack, False),
    }


def forward_again(block: nn.Module, hidden: Tensor, mask: Tensor) -> Tensor:
    """Run `block`, and once more when backward comes to it, as a replay does; the second result is let go."""
    out: Tensor = block(hidden, mask)
    given = hidden.detach().requires_grad_()

    def again(gradient: Tensor) -> None:
        with torch.enable_grad():
            block(given, mask)

    out.register_hook(again)
    return out


def _segment(stack: Stack, number: int) -> Segment:
    buffers = tuple(name for name, _ in stack.named_buffers() if name.startswith(f"blocks.{number}."))
    return Segment(calls=(f"blocks.{number}#0",), buffers=buffers)


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
