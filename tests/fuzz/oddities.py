"""Leaves that do what a recomputation is likely to get wrong."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.fuzz.custom import Custom, MarksDirty, Masked, SavesOutput, apply
from tests.fuzz.leaves import STEPS, WIDTH, Apply

__all__ = ["ODDITIES"]


class Averaged(nn.Module):
    """Reads a buffer and changes it; `how` is in place, by assignment, or in place behind autograd's back."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.zeros(WIDTH))

    mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        out = x * self.mean.cos() - self.mean
        with torch.no_grad():
            new = x.float().mean((0, 1)) + 0.1  # that of a normalised batch would be nothing, and no change to be seen
            if self.how == "in place":
                self.mean.lerp_(new, 0.3)
            elif self.how == "assigned":
                self.mean = self.mean.lerp(new, 0.3)
            else:
                self.mean.data[: WIDTH // 2].add_(new[: WIDTH // 2])
        return out


class Calls(nn.Module):
    """Counts its calls; `counts` says whether the count changes its result."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.calls = 0
        self.counts = counts
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = torch.tanh(self.linear(x) * (self.calls if self.counts else 1))
        return out


class Remembers(nn.Module):
    """Makes a mask at its first call and keeps it as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = (torch.rand(WIDTH) > 0.3).float()
        return (x * self.mask).exp().clamp(max=3)


class Constant(nn.Module):
    """Reads a tensor that is neither parameter nor buffer, and one from a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = [torch.linspace(0.5, 1, WIDTH)]
        shift = torch.linspace(-1, 1, WIDTH)
        self.shifted: Callable[[Tensor], Tensor] = lambda x: x - shift

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.shifted(x) * self.scales[0])


class OwnGenerator(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(x.shape, generator=self.generator)
        out: Tensor = self.linear(x * noise)
        return out


class HostRandom(nn.Module):
    """Draws from Python's generator."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * random.random()).exp().clamp(max=3)


class NoGrad(nn.Module):
    """Computes a part without gradients, with random numbers, and reads a value out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = F.dropout(self.linear(x), 0.4).sigmoid()
            size = 1.0 + float(gate.float().mean())
        out: Tensor = self.linear(x) * gate / size
        return out.sin()


class Branches(nn.Module):
    """Goes one of two ways by what it computes, with noise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if float((y + torch.randn(())).detach().float().mean()) > 0:
            return y.tanh()
        return y.exp().clamp(max=3) * y


def _halved(module: nn.Module, given: Any, got: Any) -> Any:
    return tuple(None if gradient is None else gradient * 0.5 for gradient in given)


class Hooked(nn.Module):
    """Hooks that change what a layer gets, returns and passes back; one on a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.linear.register_forward_pre_hook(lambda module, args: (args[0] * 0.9,))
        self.linear.register_forward_hook(lambda module, args, out: F.dropout(out, 0.2) + args[0])
        self.linear.register_full_backward_hook(_halved)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 2)
        return y.sigmoid()


class Handled(nn.Module):
    """Fails half way, catches it and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        try:
            raise ValueError(self.linear(x).tanh())
        except ValueError as error:
            y: Tensor = self.linear(x).sigmoid() * error.args[0]
        with contextlib.suppress(Exception):
            y = y * self.linear(y).exp().clamp(max=3)
        return y


class HandledAll(nn.Module):
    """Catches everything there is, also what would end a replay."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(BaseException):
            x = self.linear(x).tanh()
        try:
            out: Tensor = self.linear(x).sin() * x
            return out
        except:  # noqa: E722 - what a model may well do
            return torch.sigmoid(self.linear(x))


def _in_place_inside(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = y[:, 1] * 2
    return y.mul_(0.5).sin()


ODDITIES: dict[str, Callable[[], nn.Module]] = {
    "SavesOutput": partial(Custom, partial(apply, SavesOutput)),
    "MarksDirty": partial(Custom, lambda x: apply(MarksDirty, x * 2).exp().clamp(max=3)),
    "Masked": Masked,
    "AveragedInPlace": partial(Averaged, "in place"),
    "AveragedAssigned": partial(Averaged, "assigned"),
    "AveragedByData": partial(Averaged, "data"),
    "Calls": partial(Calls, False),
    "CallsMatter": partial(Calls, True),
    "Remembers": Remembers,
    "Constant": Constant,
    "OwnGenerator": OwnGenerator,
    "HostRandom": HostRandom,
    "NoGrad": NoGrad,
    "Branches": Branches,
    "Hooked": Hooked,
    "Handled": Handled,
    "HandledAll": HandledAll,
    "Identity": nn.Identity,
    "Alias": partial(Apply, lambda x: x.view_as(x)),
    "Detached": partial(Apply, lambda x: x.detach() * x),
    "Expanded": partial(Apply, lambda x: x.mean(1, keepdim=True).expand(-1, STEPS, -1)),
    "InPlaceFirst": partial(Apply, lambda x: x.mul_(0.9).add_(0.1)),
    "InPlaceInside": partial(Apply, _in_place_inside),
}
