"""A block of one function of each kind, and profiles of it and of the zoo, looked up by keys."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import autockpt
from autockpt import Profile
from tests.zoo import build, loss_of

__all__ = ["MODES", "Block", "Units", "block", "zoo"]

MODES = ["measured", "fake"]


class Block(nn.Module):
    """One of each: matrix products, an element-wise function, views, attention, dropout, in-place, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = F.gelu(F.linear(hidden, self.up.weight, self.up.bias))
        narrow = F.linear(wide, self.down.weight, self.down.bias)
        heads = narrow.view(4, hidden.size(1), 2, 8).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(hidden.shape)
        self.seen.add_(1)  # type: ignore[operator]
        out = F.dropout(out, 0.1).relu_()
        return hidden + out


class Units:
    """The functions of one call in a profile, by their keys."""

    def __init__(self, profile: Profile, call: str) -> None:
        self.refused = profile.refused("result")
        self.table = profile.functions
        names = [each.key for each in profile.calls]
        self.number = {self.table.key(i): i for i, c in enumerate(self.table.call) if names[c] == call}

    def reads(self, *keys: str) -> set[int]:
        return {tensor for key in keys for tensor in self.table.reads[self.number[key]]}

    def makes(self, *keys: str) -> set[int]:
        return {tensor for key in keys for tensor in self.table.makes[self.number[key]]}

    def having(self, flag: str) -> set[str]:
        return {key for key, i in self.number.items() if getattr(self.table, flag)[i]}

    def without_result(self) -> set[str]:
        """The functions whose result a replay cannot hand out."""
        return {key for key, i in self.number.items() if i in self.refused}


def block(mode: Any = "measured") -> tuple[Profile, Units]:
    profile = autockpt.profile(nn.Sequential(nn.Linear(16, 16), Block()), torch.randn(4, 6, 16), mode=mode)
    return profile, Units(profile, "1#0")


@cache
def zoo(name: str) -> Profile:
    """The profile of a model of the zoo in its short form."""
    case = build(name, short=True)
    return autockpt.profile(case.model, case.kwargs, loss=loss_of)
