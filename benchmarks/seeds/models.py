"""The nets that are asked: a chain of convolutions, micro-batches of a model, VGG-19, and blocks as Megatron's."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["VGG", "ConvolutionalChain", "MegatronBlocks", "MicroBatches"]

WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)
"""Channels of VGG-19's convolutions; 0 where it halves the picture."""


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.last(self.second(functional.relu(self.norm(self.first(x))))))


class ConvolutionalChain(nn.Module):
    """Equal residual blocks of two convolutions, as deep networks on CIFAR have them."""

    def __init__(self, blocks: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(_Residual(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3))).square().mean()
        return out


class MicroBatches(nn.Module):
    """A model whose batch comes in parts: all forwards, then all backwards, as a stage of GPipe runs them."""

    def __init__(self, model: nn.Module, parts: int) -> None:
        super().__init__()
        self.model, self.parts = model, parts

    def forward(self, **batch: Tensor) -> Tensor:
        columns = [tensor.chunk(self.parts) for tensor in batch.values()]
        losses: list[Any] = [
            self.model(**dict(zip(batch, part, strict=True))).loss for part in zip(*columns, strict=True)
        ]
        return torch.stack(losses).mean()


class VGG(nn.Module):
    """VGG-19, of Simonyan and Zisserman 2014."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in WIDTHS:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
            channels = width or channels
        self.features = nn.Sequential(*layers)
        wide = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
        self.classifier = nn.Sequential(*wide)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.features(images).flatten(1)).square().mean()
        return out


class _Core(nn.Module):
    """The core of attention in four operators; the scores are held, and so are the dropped ones and their mask."""

    def __init__(self, head: int, dropout: float) -> None:
        super().__init__()
        self.scale, self.dropout = 1 / math.sqrt(head), dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=self.scale)
        return torch.bmm(functional.dropout(scores.softmax(-1), self.dropout, self.training), v)


class _MegatronBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.core = nn.Linear(width, 3 * width), _Core(width // heads, dropout)
        self.project, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        rows = batch * self.heads
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2).reshape(rows, length, -1) for p in parts)
        mixed = self.core(q, k, v, mask).view(batch, self.heads, length, -1).transpose(1, 2)
        x = x + self._dropped(self.project(mixed.reshape(batch, length, width)))
        return x + self._dropped(self.down(functional.gelu(self.up(self.second_norm(x)))))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class MegatronBlocks(nn.Module):
    """Blocks as figures 2 and 3 of Korthikanti et al. 2022 draw them: attention by itself, with three dropouts."""

    def __init__(self, *, layers: int, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_MegatronBlock(width, heads, dropout) for _ in range(layers))
        self.register_buffer("mask", torch.zeros(1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.mask)
        return x.sum()
