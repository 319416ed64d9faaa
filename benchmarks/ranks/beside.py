"""What two ranks do that hold autockpt beside torch's own checkpoint, under FSDP2; see `checkpointed`."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import autockpt
from tests.doors import governor_of
from tests.ranks.models import Shared, loss_of, tokens, writer
from tests.ranks.works import STEPS, agreed, watched

DEPTH, WIDTH, ROWS, LENGTH = 6, 128, 8, 128
SHARED = Shared(by="fsdp")
COLD = 6
"""Steps before any is timed: those that record, the one that rehearses, and the next."""


def built(every: int | None, log: list[str]) -> nn.Module:
    """Shard a small GPT with dropout by FSDP2, block by block and at its root.

    Args:
        every: of how many blocks one is recomputed by torch, as torchtitan's ``apply_ac`` does; None for none.
        log: is told of the collectives.
    """
    model = writer(width=WIDTH, depth=DEPTH)
    for number in range(0 if every is None else every - 1, DEPTH if every else 0, every or 1):
        model.blocks[number] = checkpoint_wrapper(model.blocks[number], preserve_rng_state=True)
    return SHARED.wrap(model, log)


def batch_of(rank: int, number: int) -> torch.Tensor:
    return tokens(rank, number, rows=ROWS, length=LENGTH)


def peaks(rank: int, *, every: int) -> dict[str, Any]:
    """Train plainly, by torch's checkpoint, and under the peak that this was measured to have."""
    gc.freeze()
    batches = [[batch_of(rank, number)] for number in range(STEPS)]
    found = {}
    for name, of in (("plain", None), ("torch", every)):
        log: list[str] = []
        found[name] = watched(built(of, log), batches, log)
        gc.collect()
    budget, log = agreed(max(found["torch"].peaks)), []
    model = autockpt.apply(built(None, log), budget)
    found["autockpt"] = watched(model, batches, log)
    governor: Any = governor_of(model)
    plans = [made.plan for made in governor.account.plans]
    return {
        "budget": budget,
        "predicted": max(plan.peak_bytes for plan in plans),
        "segments": [list(segment.calls) for segment in plans[-1].segments],
        "kept": [list(segment.keep) for segment in plans[-1].segments],
        **{
            name: {"peaks": each.peaks, "differ": found["plain"].differ(each), "log": _of_a_step(each.log)}
            for name, each in found.items()
        },
    }


def _of_a_step(log: list[str]) -> list[str]:
    """The collectives of the last step: all steps have equally many."""
    each, left = divmod(len(log), STEPS)
    assert not left, log
    return log[-each:]


def seconds(rank: int, *, every: int, budget: int, rounds: int) -> list[dict[str, float]]:
    """Take steps of three trainings in turns; return the processor's seconds of each round."""
    steps = {
        "plain": _training(built(None, []), rank),
        "torch": _training(built(every, []), rank),
        "autockpt": _training(autockpt.apply(built(None, []), budget), rank),
    }
    for step in steps.values():
        for number in range(COLD):
            step(number)
    names, found = list(steps), []
    for number in range(rounds):
        turn = number % len(names)
        found.append({name: steps[name](COLD + number) for name in (*names[turn:], *names[:turn])})
    return found


def _training(model: nn.Module, rank: int) -> Any:
    return partial(_step, model, torch.optim.AdamW(model.parameters(), lr=1e-3), rank)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int) -> float:
    batch = batch_of(rank, number)
    torch.manual_seed(100 + number)
    began = time.process_time()
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()
    return time.process_time() - began
