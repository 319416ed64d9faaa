"""What the examples share: a small GPT, a loop, and a table of the plain training and of the one within a budget.

Each rank runs this. On CUDA the ranks talk by NCCL, else by gloo.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

import autockpt

WORDS, ROWS, LENGTH, STEPS = 512, 8, 128, 8

Wrap = Callable[[nn.Module], nn.Module]

Row = tuple[int, int, int, int, bool]
"""Budget, plain peak and measured peak of a rank, in bytes; how many segments it recomputes; whether losses agree."""


class Attention(nn.Module):
    """Causal attention; where ranks share the heads, each has some of them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        rows, length, _ = hidden.shape
        query, key, value = (
            part(hidden).view(rows, length, -1, self.size).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, -1))


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(hidden)))


class Block(nn.Module):
    """One block of the GPT, with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feed_forward = Attention(width, heads), FeedForward(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.first(hidden)))
        return hidden + self.dropout(self.feed_forward(self.second(hidden)))


class GPT(nn.Module):
    """A small GPT."""

    def __init__(self, width: int = 64, depth: int = 6, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


@dataclass(frozen=True)
class Trained:
    """What a training was.

    Attributes:
        losses: of each step.
        start_bytes: that stood as a step began, measured.
        peak_bytes: of a step, measured: on a CPU the least of three. gloo's own threads let go of what they have copied
            at moments of their own, which `measure` does not see, so one may be too high.
        plan: under which it ran; None for a plain one.
    """

    losses: tuple[float, ...]
    start_bytes: int
    peak_bytes: int
    plan: autockpt.Plan | None


@contextmanager
def ranks() -> Iterator[torch.device]:
    """Join the other ranks, which torchrun has started; gives the device of this one."""
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    distributed.init_process_group("nccl" if on_cuda else "gloo")
    try:
        yield device
    finally:
        gc.collect()  # models hold the group, whose threads must be over before the process is
        distributed.destroy_process_group()


def batch_of(step: int, device: torch.device, *, rank: int) -> Tensor:
    """Return the batch of a step, another one for each rank."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator).to(device)


def train(wrap: Wrap, device: torch.device, budget: int | None = None, *, alike: bool = False) -> Trained:
    """Train a model that ranks share.

    Args:
        wrap: has them share it.
        device: of this rank.
        budget: in bytes; None to train plainly.
        alike: whether ranks are given the same batches.
    """
    torch.manual_seed(0)
    model = wrap(GPT().to(device))
    if budget is not None:
        autockpt.apply(model, budget)  # the one line
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank = 0 if alike else distributed.get_rank()
    losses: list[float] = []

    def step() -> None:
        tokens = batch_of(len(losses), device, rank=rank)
        torch.manual_seed(len(losses))
        loss = functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    for _ in range(STEPS - 3):
        step()
    measured = []
    for _ in range(3):
        gc.collect()
        measured.append(autockpt.measure(step))
    found = min(measured, key=lambda each: each.peak_bytes) if device.type == "cpu" else measured[-1]
    plan = None if budget is None else autockpt.plan_of(model)
    return Trained(tuple(losses), found.start_bytes, found.peak_bytes, plan)


def compare(name: str, wrap: Wrap, device: torch.device, *, share: float = 0.6, alike: bool = False) -> list[Row]:
    """Train plainly, and then within a budget; rank 0 prints a table, of which all return the rows.

    Args:
        name: how ranks share the model.
        wrap: has them share it.
        device: of this rank.
        share: how much of what the plain step adds the budget leaves.
        alike: whether ranks are given the same batches.
    """
    plain = train(wrap, device, alike=alike)
    gc.collect()
    leaves = torch.tensor(plain.start_bytes + int(share * (plain.peak_bytes - plain.start_bytes)), device=device)
    distributed.all_reduce(leaves, op=distributed.ReduceOp.MAX)
    held = train(wrap, device, int(leaves), alike=alike)
    return report(name, int(leaves), plain, held)


def report(name: str, budget: int, plain: Trained, held: Trained) -> list[Row]:
    """Print, on rank 0, a row for each rank; return them."""
    own = (budget, plain.peak_bytes, held.peak_bytes, len(held.plan.segments) if held.plan else 0)
    rows: list[Row] = [(*own, held.losses == plain.losses)] * distributed.get_world_size()
    distributed.all_gather_object(rows, rows[0])
    if distributed.get_rank() == 0:
        print(f"{name}: {len(rows)} ranks on {'CUDA' if torch.cuda.is_available() else 'a CPU'}")
        print(f"{'rank':>4} {'budget':>10} {'plain peak':>11} {'measured peak':>14}  segments  losses")
        for rank, (budget_bytes, *peaks, segments, same) in enumerate(rows):  # type: ignore[misc]
            told = " ".join(f"{each / 1e6:8.2f} MB" for each in (budget_bytes, *peaks))
            print(f"{rank:>4} {told} {segments:>12}  {'the same' if same else 'OTHERS'}")
    return rows
