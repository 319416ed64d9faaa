"""What two ranks do, side by side: plain, and then under a plan; each returns what the other is compared with."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import distributed

import autockpt

from .models import Shared, collectives, standing_bytes, step, tokens, trained, writer

STEPS = 6


def measured(step_once: Any) -> int:
    gc.collect()
    return autockpt.measure(step_once).peak_bytes


def kept(
    rank: int,
    *,
    shared: Shared,
    share: float,
    before: bool = False,
    accumulate: int = 1,
    width: int = 64,
    length: int = 64,
    norm: bool = False,
) -> dict[str, Any]:
    """Train plainly and under a budget that leaves a share of what the plain step adds."""
    gc.freeze()  # what was there before is looked through by every measurement
    batches = [[tokens(rank, accumulate * i + j, length=length) for j in range(accumulate)] for i in range(STEPS + 1)]

    def run(budget: int | str | None) -> tuple[Any, ...]:
        log: list[str] = []
        model = writer(width=width, norm=norm)
        applied = [model]
        if budget is not None and before:
            autockpt.apply(model, budget)
        wrapped = shared.wrap(model, log)
        if budget is not None and not before:
            applied = [autockpt.apply(wrapped, budget)]  # type: ignore[list-item]
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        peaks: list[int] = []
        starts: list[int] = []
        grown: list[int] = []

        def step_once(number: int) -> dict[str, str]:
            said: list[dict[str, str]] = []
            gc.collect()
            stood = standing_bytes(wrapped, optimizer, batches[number][:1])
            found = autockpt.measure(lambda: said.append(step(wrapped, optimizer, batches[number], 100 + number)))
            starts.append(stood)
            peaks.append(stood + found.step_bytes)
            grown.append(found.end_bytes - found.start_bytes)
            return said[0]

        with collectives(log):
            told = trained(wrapped, step_once, STEPS)
        plan = autockpt.plan_of(applied[0]) if budget is not None else None
        return told, log, peaks, starts, grown, plan

    plain, plain_log, plain_peaks, plain_starts, *_ = run(None)
    gc.collect()
    budget = int(plain_starts[-1] + share * (plain_peaks[-1] - plain_starts[-1]))
    agreed = torch.tensor([budget])
    distributed.all_reduce(agreed, op=distributed.ReduceOp.MAX)
    budget = int(agreed)
    result: dict[str, Any] = {"budget": budget, "plain": plain_peaks[-1], "start": plain_starts[-1]}
    try:
        told, log, peaks, _, grown, plan = run(budget)
    except autockpt.Infeasible as error:
        return {**result, "infeasible": str(error)}
    assert plan is not None
    return {
        **result,
        "differ": [
            (number, name)
            for number, (one, other) in enumerate(zip(plain, told, strict=True))
            for name in one
            if one[name] != other.get(name)
        ][:8],
        "log": log,
        "plain_log": plain_log,
        "peaks": peaks,
        "grown": grown,
        "predicted": plan.peak_bytes,
        "plain_predicted": plan.plain_peak_bytes,
        "segments": [list(segment.calls) for segment in plan.segments],
        "refused": sorted({each.reason for each in plan.refused}),
    }
