"""What two ranks do whose segments run over several units of FSDP2; see `works`."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

import autockpt
from tests.doors import governor_of

from .models import Shared, loss_of, tokens, writer
from .works import Watched, watched

STEPS = 3
FSDP = Shared(by="fsdp")


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


class Thin(nn.Module):
    """A block that saves little more than what it is given: its boundary is half of what it holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.line = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.dropout(torch.tanh(self.line(hidden)), 0.1, self.training)


def planned(
    rank: int, *, budget: int | str, shared: Shared = FSDP, depth: int = 16, lengths: tuple[int, ...] = (64,)
) -> dict[str, Any]:
    """Train plainly and under a budget on many thin blocks; tell both, and the plans."""
    gc.freeze()
    length = lengths[rank % len(lengths)]
    every = [[tokens(rank, number, length=length)] for number in range(6)]

    def run(asked: int | str | None) -> tuple[Watched, list[Any]]:
        model = writer(depth=0)
        model.blocks.extend(Thin(64) for _ in range(depth))
        log: list[str] = []
        wrapped = shared.wrap(model, log)
        if asked is not None:
            autockpt.apply(wrapped, asked)
        found = watched(wrapped, every, log)
        governor: Any = governor_of(wrapped)
        return found, [] if governor is None else [made.plan for made in governor.account.plans]

    plain, _ = run(None)
    try:
        found, plans = run(budget)
    except autockpt.Infeasible as error:
        return {"infeasible": str(error), "plain": plain.peaks}
    return {
        "differ": plain.differ(found),
        "log": found.log,
        "more": len(found.log) - len(plain.log),
        "peaks": found.peaks,
        "plain": plain.peaks,
        "predicted": [plan.peak_bytes for plan in plans],
        "segments": [list(segment.calls) for segment in plans[-1].segments],
    }
