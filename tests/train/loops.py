"""Training loops as people write them, run plain and with a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import autockpt
from tests.twin import held_by, storage_bytes

__all__ = ["VOCABULARY", "Loop", "inside", "language_model", "outside", "tokens_of"]

VOCABULARY = 1000

Batch = dict[str, torch.Tensor]


class Output(NamedTuple):
    """What a language model returns, as transformers name it."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Block(nn.Module):
    """A residual block that mixes tokens, so that something grows with the square of the length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        mixed = torch.softmax(normed @ normed.transpose(1, 2), -1) @ normed
        inner: torch.Tensor = self.dropout(self.narrow(nn.functional.gelu(self.widen(mixed))))
        return hidden + inner


class LanguageModel(nn.Module):
    """A small language model whose logits are large beside its blocks."""

    def __init__(self, layers: int = 6, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Output:
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        if labels is None:
            return Output(logits)
        return Output(logits, cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1)))


def language_model(layers: int = 6) -> nn.Module:
    """The same model each time."""
    torch.manual_seed(0)
    return LanguageModel(layers)


def tokens_of(batch: int, length: int, seed: int = 0) -> Batch:
    """Random tokens, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(0, VOCABULARY, (batch, length), generator=generator)}


def outside(model: nn.Module, batch: Batch) -> tuple[Any, torch.Tensor]:
    """Cross-entropy outside the model, next tokens against logits."""
    outputs = model(**batch)
    labels = batch["input_ids"][:, 1:].reshape(-1)
    return outputs, cross_entropy(outputs.logits[:, :-1].reshape(len(labels), -1), labels)


def inside(model: nn.Module, batch: Batch) -> tuple[Any, torch.Tensor]:
    """The model's own loss."""
    outputs = model(**batch, labels=batch["input_ids"])
    return outputs, outputs.loss


class Loop:
    """A model, its optimizer, and a step.

    Args:
        model: the model.
        forward: returns outputs and loss.
        accumulate: how many batches make a step.
        set_to_none: whether gradients are let go of after a step, or filled with zeros.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[nn.Module, Batch], tuple[Any, torch.Tensor]],
        *,
        accumulate: int = 1,
        set_to_none: bool = True,
    ) -> None:
        self.model = model
        self.forward = forward
        self.accumulate = accumulate
        self.set_to_none = set_to_none
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self, batch: Batch) -> float:
        """Train once; return the loss."""
        total, outputs = 0.0, None
        for _ in range(self.accumulate):
            outputs, loss = self.forward(self.model, batch)
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        del outputs  # until now, as by a loop that has a name for them
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        return total

    def losses(self, batches: Sequence[Batch]) -> list[float]:
        """Train on each."""
        torch.manual_seed(3)
        return [self.step(batch) for batch in batches]

    def peak_bytes(self, batch: Batch) -> int:
        """Measure a step, everything counted that belongs to it."""
        return self.static_bytes(batch) + autockpt.measure(lambda: self.step(batch), device="cpu").step_bytes

    def static_bytes(self, batch: Batch) -> int:
        """What is there before a step."""
        return storage_bytes(held_by(self.model, self.optimizer, batch))
