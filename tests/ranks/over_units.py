"""What two ranks do whose segments run over several units of FSDP2; see `works`."""

from __future__ import annotations

import gc
from typing import Any

import autockpt

from .models import Shared, tokens, writer
from .works import STEPS, watched


def by_hand(
    rank: int, *, shared: Shared, runs: list[list[str]], depth: int = 4, accumulate: int = 1, rows: int = 8
) -> dict[str, Any]:
    """Train plainly, with each block recomputed by itself, and in runs of calls."""
    gc.freeze()
    every = [[tokens(rank, accumulate * i + j, rows=rows) for j in range(accumulate)] for i in range(STEPS + 1)]
    plans = {
        "plain": None,
        "blocks": [[f"blocks.{number}"] for number in range(depth)],
        "runs": runs,
    }
    found = {}
    for name, segments in plans.items():
        log: list[str] = []
        model = shared.wrap(writer(depth=depth), log)
        if segments is not None:
            autockpt.apply(model, plan=autockpt.Plan.of(segments))
        found[name] = watched(model, every, log)
        gc.collect()
    return {
        name: {"differ": found["plain"].differ(each), "log": each.log, "peaks": each.peaks, "grown": each.grown}
        for name, each in found.items()
    }
