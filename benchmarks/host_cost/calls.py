"""Count the function calls of recomputing a call, which no other work on a machine moves."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import table, write
from benchmarks.host_cost.blocks import BLOCKS, Stack, batch
from benchmarks.host_cost.ways import DEPTH, settings

FOLDER = Path(__file__).with_suffix("")
WARM_STEPS = 6
"""Rehearsals, and the steps after them that look at more than later ones."""

KINDS = {"call": "python", "c_call": "c"}
"""What `sys.setprofile` calls a call of a function in Python and of one in C."""


def main() -> None:
    torch.set_num_threads(1)
    raw = {name: count_block(name) for name in BLOCKS}
    rows = [
        [name, which, f"{calls['python']:.0f}", f"{calls['c']:.0f}"]
        for name, ways in raw.items()
        for which, calls in ways.items()
    ]
    write(FOLDER, {"calls_per_call": raw}, table(["block", "recomputed by", "Python calls", "C calls"], rows))


def count_block(name: str, device: str = "cpu") -> dict[str, dict[str, float]]:
    """Return, for each setting, calls in Python and C for each recomputed call, over the plain step."""
    torch.manual_seed(0)
    stack, inputs = Stack(BLOCKS[name], DEPTH).to(device), batch(device)
    found: dict[str, Counter[str]] = {}
    for way, make in settings().items():
        make(stack)
        for _ in range(WARM_STEPS):
            stack(*inputs).sum().backward()
        with counted() as found[way]:
            stack(*inputs).sum().backward()
    plain = found.pop("plain")
    return {way: {kind: (calls[kind] - plain[kind]) / DEPTH for kind in KINDS.values()} for way, calls in found.items()}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls meanwhile; backward runs in this thread."""
    found: Counter[str] = Counter()

    def saw(_: Any, event: str, __: Any) -> None:
        if event in KINDS:
            found[KINDS[event]] += 1

    gc.disable()
    try:
        with torch.autograd.set_multithreading_enabled(False):
            sys.setprofile(saw)
            try:
                yield found
            finally:
                sys.setprofile(None)
    finally:
        gc.enable()


if __name__ == "__main__":
    main()
