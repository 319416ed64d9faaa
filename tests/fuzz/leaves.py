"""Usual layers as leaves of a drawn model: each maps hidden states of shape (BATCH, STEPS, WIDTH) to such."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

__all__ = ["BATCH", "LEAVES", "STEPS", "WIDTH", "Apply"]

BATCH, STEPS, WIDTH = 2, 4, 8


class Channels(nn.Module):
    """A layer that wants channels second: gets a view, and its result leaves as a view."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.transpose(1, 2)).transpose(1, 2)
        return out


class Images(nn.Module):
    """A layer for images of two by two."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.reshape(BATCH, WIDTH, 2, 2)).reshape(BATCH, STEPS, WIDTH)
        return out


class Fused(nn.Module):
    """Attention by `scaled_dot_product_attention`, with dropout in training."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).view(BATCH, STEPS, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        q, k, v = heads
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(BATCH, STEPS, WIDTH))
        return out


class Heads(nn.Module):
    """`nn.MultiheadAttention`: the same tensor three times, and a result that is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=True)[0]
        return out


class First(nn.Module):
    """A recurrent layer, of whose results only the first goes on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # in bfloat16 torch uses instructions that not every CPU has
            out: Tensor = self.inner(x.float())[0]
        return out


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Tied(nn.Module):
    """Two layers with one weight, and a raw parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.9))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.sigmoid(self.first(x)) * self.scale)
        return out


class Routed(nn.Module):
    """A mixture of experts: noisy routing by topk, gathering by index, scattering back."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        scores = self.router(tokens)
        weights, chosen = (scores + torch.randn_like(scores)).softmax(-1).topk(2, -1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, (expert(tokens[rows]) * weights[rows, slots, None]).to(out.dtype))
        return out.view_as(x)


class Quantised(nn.Module):
    """Looks its input up in a codebook, straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach().float(), self.codes.weight.detach()).argmin(-1)
        found: Tensor = self.codes(nearest)
        out: Tensor = x + (found - x).detach() + found * 0.1
        return out


def _frozen(inner: nn.Module) -> nn.Module:
    return inner.requires_grad_(False)


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def _spectrum(x: Tensor) -> Tensor:
    turned: Tensor = torch.fft.ifft(torch.fft.fft(x.float()) * 1j)
    return turned.imag


def _sorted(x: Tensor) -> Tensor:
    values, order = x.sort(-1)
    return values.gather(-1, order) + x.amax(-1, keepdim=True)


def _in_double(x: Tensor) -> Tensor:
    return (x.double().cumsum(1) / 3).to(x.dtype)


LEAVES: dict[str, Callable[[], nn.Module]] = {
    "Linear": _linear,
    "Mlp": lambda: nn.Sequential(_linear(), nn.GELU(), _linear()),
    "Conv1d": lambda: Channels(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "Conv2d": lambda: Images(nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=2)),
    "BatchNorm1d": lambda: Channels(nn.BatchNorm1d(WIDTH)),
    "BatchNorm2d": lambda: Images(nn.BatchNorm2d(WIDTH, momentum=None)),
    "BatchNormEval": lambda: Channels(nn.BatchNorm1d(WIDTH).eval()),
    "InstanceNorm": lambda: Channels(nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True)),
    "GroupNorm": lambda: Channels(nn.GroupNorm(2, WIDTH)),
    "LayerNorm": partial(nn.LayerNorm, WIDTH),
    "SpectralNorm": lambda: spectral_norm(_linear()),
    "SpectralParametrization": lambda: parametrizations.spectral_norm(_linear()),
    "WeightNorm": lambda: parametrizations.weight_norm(_linear()),
    "Dropout": partial(nn.Dropout, 0.3),
    "DropoutInplace": partial(nn.Dropout, 0.3, inplace=True),
    "Dropout1d": lambda: Channels(nn.Dropout1d(0.3)),
    "ReluInplace": partial(nn.ReLU, inplace=True),
    "SiluInplace": partial(nn.SiLU, inplace=True),
    "RRelu": lambda: nn.Sequential(nn.RReLU(), nn.Tanh()),  # where it comes last, torch's checkpoint misses its noise
    "Gelu": nn.GELU,
    "Tanh": nn.Tanh,
    "Softmax": partial(nn.Softmax, -1),
    "MaxPool": lambda: Images(nn.MaxPool2d(3, 1, 1)),
    "Fused": Fused,
    "Heads": Heads,
    "Gru": lambda: First(nn.GRU(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True)),
    "Lstm": lambda: First(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "Tied": Tied,
    "Routed": Routed,
    "Quantised": Quantised,
    "FrozenLinear": lambda: _frozen(_linear()),
    "FrozenBatchNorm": lambda: _frozen(Channels(nn.BatchNorm1d(WIDTH))),
    "Spectrum": partial(Apply, _spectrum),
    "Sorted": partial(Apply, _sorted),
    "InDouble": partial(Apply, _in_double),
    "Multiplied": partial(Apply, lambda x: torch.einsum("bsw,btw->bst", x, x) @ x / WIDTH),
}
