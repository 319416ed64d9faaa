"""Small blocks as leaves: several functions each, of which some are hard to keep or to leave out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from tests.fuzz.leaves import WIDTH, Channels

__all__ = ["BLOCKS"]


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


class Normed(nn.Module):
    """A layer, a norm and an activation, twice; with `shared` the norm is the same one."""

    def __init__(self, norm: Callable[[int], nn.Module], shared: bool, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = _linear(), _linear()
        self.norm = norm(WIDTH)
        self.other = self.norm if shared else norm(WIDTH)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.first(x).transpose(1, 2)))
        out: Tensor = self.activation(self.other(self.second(x.transpose(1, 2)).transpose(1, 2)))
        return out.transpose(1, 2)


class Alike(nn.Module):
    """Equal blocks, but that the first two have one norm: its statistics are the business of both."""

    def __init__(self) -> None:
        super().__init__()
        norms = [nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)]
        self.blocks = nn.ModuleList(
            Channels(nn.Sequential(nn.Tanh(), norm, nn.GELU())) for norm in (norms[1], norms[0], norms[0])
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Noisy(nn.Module):
    """Draws in many functions, one after the other, between others that do not draw."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _linear(), _linear()
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.first(F.dropout(x, 0.2))) * torch.rand_like(x)
        y = torch.tanh(y + torch.randn(WIDTH))
        y = F.dropout(self.second(F.alpha_dropout(y, 0.1)), 0.3, inplace=True)
        out: Tensor = self.dropout(y.exp().clamp(max=3)) + torch.bernoulli(torch.full_like(x, 0.5)) * x
        return out


class InPlace(nn.Module):
    """Changes results in place right after functions that save them, or others of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _linear(), _linear()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu_(self.first(x))
        y = self.norm(F.silu(self.second(y) * y, inplace=True))
        z = (y * x).add_(1)
        z += y
        z[..., : WIDTH // 2].tanh_()
        out: Tensor = z.sin()
        return out


class Gated(nn.Module):
    """A product whose factors come out of one function, as views of it, and a sum over a list."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        parts = list(torch.split(F.silu(gate) * up, WIDTH, -1))
        parts.append(F.normalize(x, dim=-1))
        y = self.down(torch.cat(parts[:2], -1))
        values, places = torch.sort(torch.stack([y, *parts]).sum(0), -1)
        out: Tensor = values * torch.softmax(y, -1) + places.float().mean()
        return out


def _counting(width: int) -> nn.Module:
    return nn.BatchNorm1d(width, momentum=None)


class Scaled(nn.Module):
    """Weights that forward makes first, a norm on them, and the same layer again."""

    def __init__(self, old: bool) -> None:
        super().__init__()
        normed = spectral_norm if old else parametrizations.spectral_norm
        self.layer: nn.Module = normed(_linear())
        self.norm = Channels(nn.BatchNorm1d(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.tanh(self.norm(self.layer(x))))
        return F.gelu(out)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "Normed": partial(Normed, nn.BatchNorm1d, False, F.gelu),
    "NormedInPlace": partial(Normed, nn.BatchNorm1d, False, F.relu_),
    "NormedByCount": partial(Normed, _counting, False, torch.tanh),
    "NormedTwice": partial(Normed, nn.BatchNorm1d, True, F.silu),
    "NormedTwiceByCount": partial(Normed, _counting, True, F.relu_),
    "Alike": Alike,
    "Noisy": Noisy,
    "InPlace": InPlace,
    "Gated": Gated,
    "ScaledOld": partial(Scaled, True),
    "Scaled": partial(Scaled, False),
}
