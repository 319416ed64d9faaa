"""Modules that do what they are told, with the parts that they are given: what a test is about stands in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

__all__ = ["Told", "around", "casting", "chunks", "greedy", "overwriting", "with_linear"]


class Told(nn.Module):
    """Does what `act` says, which is given the module itself and then what forward is given.

    Parts are attributes; a tensor among them that is no parameter is a buffer.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, act: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.act = act
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.act(self, *args, **kwargs)


def with_linear(act: Callable[..., Any], width: int = 8, /, **parts: Any) -> Told:
    """A module with one layer, and what else is given."""
    return Told(act, linear=nn.Linear(width, width), **parts)


def around(inner: nn.Module, act: Callable[..., Any]) -> Told:
    """A module that calls another one in its own way; `act` is given that and what forward is given."""
    return Told(lambda own, *args, **kwargs: act(own.inner, *args, **kwargs), inner=inner)


def casting(inner: nn.Module, *, enabled: bool = True) -> Told:
    """A module that calls another one under autocast of its own, or without that of others."""

    def act(inner: nn.Module, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return inner(x)

    return around(inner, act)


def overwriting(width: int) -> Told:
    """A layer that changes its argument in place, which may be what the call before has returned."""
    return with_linear(lambda own, x: own.linear(x.mul_(2)), width)


def chunks() -> Told:
    """Has tensors of one storage that count their changes each by itself: one is saved, then another is written."""

    def act(own: Told, x: Tensor) -> Tensor:
        first, second = torch.unsafe_chunk(x * 2, 2, -1)
        return torch.cat([first.sigmoid_(), second.tanh_()], -1)

    return Told(act)


def greedy(inner: nn.Module) -> Told:
    """A module that changes its batch in place, by numbers of a generator that it is given."""
    return Told(lambda own, x, generator: own.inner(x.mul_(torch.rand(x.shape[-1], generator=generator))), inner=inner)
