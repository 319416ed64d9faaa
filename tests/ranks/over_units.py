"""What two ranks do whose segments run over several units of FSDP2; see `works`."""

from __future__ import annotations

import gc
from typing import Any

import torch

import autockpt

from .models import Shared, loss_of, tokens, writer
from .works import watched

STEPS = 3


def by_hand(rank: int, *, shared: Shared, runs: list[list[str]], accumulate: int = 1) -> dict[str, Any]:
    """Train plainly, and with runs of calls that are recomputed together."""
    gc.freeze()
    every = [[tokens(rank, accumulate * i + j) for j in range(accumulate)] for i in range(STEPS)]
    found = {}
    for name in ("plain", "runs"):
        log: list[str] = []
        model = shared.wrap(writer(), log)
        if name == "runs":
            autockpt.apply(model, plan=autockpt.Plan.of(runs))
        found[name] = watched(model, every, log)
        gc.collect()
    return {
        name: {"differ": found["plain"].differ(each), "log": each.log, "grown": each.grown}
        for name, each in found.items()
    }


def held(rank: int, *, plans: list[list[list[str]]]) -> list[int]:
    """Return how many bytes the graph of a forward holds under each of some plans."""
    gc.freeze()
    found = []
    for segments in plans:
        model = autockpt.apply(Shared(by="fsdp").wrap(writer(), []), plan=autockpt.Plan.of(segments), check="never")
        for number in range(2):
            loss_of(model, tokens(rank, number)).backward()
        kept: list[torch.Tensor] = []
        batch = tokens(rank, 2)
        gc.collect()
        step = autockpt.measure(lambda: kept.append(loss_of(model, batch)))  # noqa: B023
        found.append(step.end_bytes - step.start_bytes)
    return found
