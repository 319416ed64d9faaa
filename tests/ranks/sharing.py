"""What two ranks do that share layers, with boundaries that wait in parts; each returns what the other is compared with."""

from __future__ import annotations

import gc
from typing import Any

import torch

import autockpt
from tests.doors import governor_of

from .models import Shared, standing_bytes, step, tokens, writer


def trained(rank: int, *, shared: Shared, offload: Any, budget: Any, steps: int = 5, depth: int = 10) -> dict[str, Any]:
    gc.freeze()
    log: list[str] = []
    model = shared.wrap(writer(depth=depth), log)
    if budget is not None:
        autockpt.apply(model, budget, offload=offload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    said: list[Any] = []
    peaks: list[int] = []
    for number in range(steps):
        batch = tokens(0, number)
        gc.collect()
        stood = standing_bytes(model, optimizer, [batch])
        found = autockpt.measure(lambda: said.append(step(model, optimizer, [batch], 100 + number)))
        peaks.append(stood + found.step_bytes)
    plan = None if budget is None else autockpt.plan_of(model)
    return {"told": said, "peaks": peaks, "log": log, "plan": plan}
