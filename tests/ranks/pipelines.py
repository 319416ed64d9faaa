"""What two stages of a pipeline do, plain and under a budget each; see `works`."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn
from torch.distributed import pipelining

import autockpt
from tests.doors import governor_of

from .models import WORDS, Block, bits, standing_bytes, tokens, told

STEPS = 6
SCHEDULES: dict[str, Any] = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}


class Stage(nn.Module):
    """Half of a small language model."""

    def __init__(self, rank: int, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        torch.manual_seed(10 + rank)
        self.words = nn.Embedding(WORDS, width) if rank == 0 else None
        self.blocks = nn.ModuleList(Block(width, 4, 0.1) for _ in range(depth))
        self.head = nn.Linear(width, WORDS) if rank == 1 else None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = given if self.words is None else self.words(given)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden if self.head is None else self.head(hidden)


def _loss(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), batch[:, 1:].reshape(-1))


def trained(rank: int, schedule: str, parts: int, budget: int | None, rows: int = 16, steps: int = STEPS) -> Any:
    """Train a stage; return what each step made, where it stood and how high it went, and its plans."""
    model = Stage(rank)
    if budget is not None:
        autockpt.apply(model, budget)
    stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
    runs = SCHEDULES[schedule](stage, parts, loss_fn=_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    said: list[Any] = []
    starts: list[int] = []
    peaks: list[int] = []

    def step(number: int) -> None:
        batch = tokens(0, number, rows=rows)
        torch.manual_seed(100 + number)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        given: dict[str, Any] = {"target": batch, "losses": losses} if rank else {}
        runs.step(*(() if rank else (batch,)), **given)
        said.append([*map(bits, losses), told({name: each.grad for name, each in model.named_parameters()})])
        optimizer.step()

    for number in range(steps):
        gc.collect()
        arriving = (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
        buffers = (getattr(info, "buffer", None) for infos in arriving for info in infos)
        given = [each for each in buffers if each is not None]
        # What the last stage has made stands until the next step begins, and goes before its first forward.
        starts.append(standing_bytes(model, optimizer, [*given, *stage.output_chunks]))
        found = autockpt.measure(lambda: step(number))  # noqa: B023
        peaks.append(starts[-1] + found.step_bytes)
    governor: Any = governor_of(model)
    return said, starts, peaks, [] if governor is None else [made.plan for made in governor.account.plans]


def kept(rank: int, *, schedule: str, parts: int, share: float) -> dict[str, Any]:
    gc.freeze()
    plain, starts, peaks, _ = trained(rank, schedule, parts, None)
    budget = int(starts[-1] + share * (peaks[-1] - starts[-1]))
    told, _, held, plans = trained(rank, schedule, parts, budget)
    return {
        "same": told == plain,
        "budget": budget,
        "plain": peaks,
        "held": held,
        "predicted": [(each.peak_bytes, each.plain_peak_bytes, len(each.segments)) for each in plans],
    }


def one_infeasible(rank: int, *, schedule: str) -> dict[str, Any]:
    """Give one stage alone a budget that no plan holds it to; both train on plainly after that."""
    model = Stage(rank)
    autockpt.apply(model, [10**9, 2_500_000][rank])
    stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
    runs = SCHEDULES[schedule](stage, 4, loss_fn=_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    errors: list[tuple[int, str, str]] = []
    for number in range(5):
        batch = tokens(0, number, rows=16)
        optimizer.zero_grad()
        runs.step(*(() if rank else (batch,)), **({"target": batch} if rank else {}))
        try:
            optimizer.step()
        except autockpt.Infeasible as error:
            errors.append((number, type(error).__name__, str(error)))
    return {"errors": errors, "planned": autockpt.plan_of(model) is not None}
