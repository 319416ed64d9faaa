"""A pipeline of two stages (1F1B), plain and within a budget each: `torchrun --nproc-per-node 2 examples/pipeline.py`.

A step is all that comes before the optimizer's: every microbatch in flight counts. The budget is that of a stage.
"""

from __future__ import annotations

import gc

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import autockpt
from common import GPT, STEPS, WORDS, Row, Trained, batch_of, ranks, report

MICROBATCHES, SHARE = 4, 0.8


class Part(nn.Module):
    """The blocks of a GPT that one rank has."""

    def __init__(self, whole: GPT, rank: int, count: int) -> None:
        super().__init__()
        own = len(whole.blocks) // count
        self.blocks = whole.blocks[rank * own : (rank + 1) * own]
        self.words = whole.words if rank == 0 else None
        self.head = nn.Sequential(whole.norm, whole.head) if rank == count - 1 else None

    def forward(self, given: Tensor) -> Tensor:
        hidden = given if self.words is None else self.words(given)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden if self.head is None else self.head(hidden)


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the loss of one microbatch."""
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), tokens[:, 1:].reshape(-1))


def train(device: torch.device, budget: int | None = None) -> Trained:
    """Train this rank's stage, plainly or within a budget in bytes."""
    rank, count = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model = Part(GPT(), rank, count).to(device)
    if budget is not None:
        autockpt.apply(model, budget)  # the one line
    stage = PipelineStage(model, rank, count, device)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    steps = iter(range(STEPS))

    def step() -> None:
        number = next(steps)
        tokens, found = batch_of(number, device, rank=0), []
        torch.manual_seed(number)
        given = (tokens,) if rank == 0 else ()
        told = {"target": tokens, "losses": found} if rank == count - 1 else {}
        schedule.step(*given, **told, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        losses.extend(each.item() for each in found)

    for _ in range(STEPS - 1):
        step()
    gc.collect()
    found = autockpt.measure(step)
    plan = None if budget is None else autockpt.plan_of(model)
    return Trained(tuple(losses), found.start_bytes, found.peak_bytes, plan)


def run(device: torch.device) -> list[Row]:
    """Train both ways on this rank."""
    plain = train(device)
    gc.collect()
    limit = plain.start_bytes + int(SHARE * (plain.peak_bytes - plain.start_bytes))
    return report("Pipeline (1F1B)", limit, plain, train(device, limit))


if __name__ == "__main__":
    with ranks() as here:
        run(here)
