"""Containers that hand things to their children in other ways than as the first argument."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["GivesGenerator", "Keywords", "LeavesTensor"]


class Reads(nn.Module):
    """Reads a tensor that its parent left on it, beside its argument."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child
        self.extra: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.child(x)
        return out if self.extra is None else out * self.extra


class LeavesTensor(nn.Module):
    """Gives its child a tensor by an attribute; `twice` gives another one for a second call."""

    def __init__(self, twice: bool, child: nn.Module) -> None:
        super().__init__()
        self.reads = Reads(child)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        self.reads.extra = x.cos()
        x = self.reads(x)
        if self.twice:
            self.reads.extra = x.sin()
            x = self.reads(x)
        self.reads.extra = None
        return x


class Noisy(nn.Module):
    """Draws from a generator that it is given: by keyword, or inside a dictionary."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor, generator: torch.Generator | None = None, options: Any = None) -> Tensor:
        generator = generator or options["generator"]
        out: Tensor = self.child(x)
        return (out * torch.rand(x.shape, generator=generator)).sigmoid()


class GivesGenerator(nn.Module):
    def __init__(self, kept: bool, inside: bool, child: nn.Module) -> None:
        super().__init__()
        self.noisy = Noisy(child)
        self.generator = torch.Generator().manual_seed(5) if kept else None
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        generator = self.generator or torch.Generator().manual_seed(6)
        if self.inside:
            x = self.noisy(x, options={"generator": generator})
            out: Tensor = self.noisy(x, options={"generator": generator})
        else:
            x = self.noisy(x, generator=generator)
            out = self.noisy(x, generator=generator)
        return out


class Weighs(nn.Module):
    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        out: Tensor = self.child(x * scale)
        if mask is not None:
            out = out * mask
        if cache is not None:
            kept = cache if isinstance(cache, list) else cache.kept
            kept.append(out)
            out = out + kept[0].tanh()
        return out


class Keywords(nn.Module):
    """Hands a mask, and perhaps a cache that its children fill, by keyword."""

    def __init__(self, cache: type | None, *children: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(map(Weighs, children))
        self.cache = cache

    def forward(self, x: Tensor) -> Tensor:
        mask = (torch.rand_like(x) > 0.2).to(x.dtype)
        cache: Any = None
        if self.cache is not None:
            cache = [] if self.cache is list else SimpleNamespace(kept=[])
        for number, part in enumerate(self.parts):
            x = part(x, scale=0.5 + number, mask=mask, cache=cache)
        if isinstance(cache, list):
            x = x + cache[-1].sigmoid()
            cache.clear()
        return x
