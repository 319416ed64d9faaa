"""Models whose forwards make or take tensors of every layout and subclass that a CPU has, each trained in this process.

``python -m tests.hazards.layouts`` prints a line for each kind. An error inside an operator may end the process: so the
tests run it in one of its own.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import autockpt
from tests.twin import digest

__all__ = ["KINDS", "Kind", "train"]

STEPS, ROWS, WIDTH = 5, 12, 8


class Shapeless(Tensor):
    """A subclass that tells nobody its shape."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no shape")


class Unreadable(Tensor):
    """A subclass of which not even the type of its elements can be read."""

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no dtype")


class HalfMade(Tensor):
    """A wrapper of which operators run before it has what it wraps."""

    wrapped: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> HalfMade:
        made: HalfMade = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        torch.ops.aten.detach.default(made)
        return made

    def __init__(self, inner: Tensor) -> None:
        self.wrapped = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["wrapped"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], _: None, size: Any, stride: Any) -> HalfMade:
        return HalfMade(inner["wrapped"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func}")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a forward does between two layers.

    Attributes:
        act: is given the first layer's output.
        batch: makes the batch of a step.
    """

    act: Callable[[nn.Linear, Tensor], Any]
    batch: Callable[[], Any] = lambda: torch.randn(ROWS, WIDTH)


def _rows(x: Tensor) -> list[Tensor]:
    return [x[:5], x[5:]]


def strided_nested(inner: nn.Linear, x: Tensor) -> Any:
    return inner(torch.nested.as_nested_tensor(_rows(x))).to_padded_tensor(0.0)


def strided_given(inner: nn.Linear, x: Tensor) -> Any:
    return (inner(x) * 2).to_padded_tensor(0.0)


def strided_transposed(inner: nn.Linear, x: Tensor) -> Any:
    nested = inner(torch.nested.as_nested_tensor(_rows(x)))
    return torch.cat([each.tanh().t() for each in nested.transpose(1, 2).unbind()])


def jagged(inner: nn.Linear, x: Tensor) -> Any:
    return inner(torch.nested.as_nested_tensor(_rows(x), layout=torch.jagged)).values().tanh()


def attends(inner: nn.Linear, x: Tensor) -> Any:
    nested = torch.nested.as_nested_tensor(_rows(inner(x)), layout=torch.jagged)
    heads = nested.unflatten(-1, [2, WIDTH // 2]).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2).values()


def jagged_given(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x).values().tanh()


def sparse_coo(inner: nn.Linear, x: Tensor) -> Any:
    return torch.sparse.mm(inner(x).relu().to_sparse(), torch.ones(WIDTH, WIDTH)).tanh()


def sparse_csr(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x).tanh() + (torch.eye(ROWS).to_sparse_csr() @ x)


def quantized(inner: nn.Linear, x: Tensor) -> Any:
    scale = torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8)
    return inner(x) * scale.dequantize()


def mkldnn(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x.to_mkldnn().to_dense()).tanh()


def on_meta(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x).view(torch.mm(torch.empty_like(x, device="meta"), torch.empty(WIDTH, WIDTH, device="meta")).shape)


def functional(inner: nn.Linear, x: Tensor) -> Any:
    torch.func.functionalize(lambda each: each.mul_(2).sin())(x.detach().clone())
    return inner(x).tanh()


def zeros(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x).tanh() + torch._efficientzerotensor((ROWS, WIDTH))


def negated(inner: nn.Linear, x: Tensor) -> Any:
    return torch.complex(inner(x), x).conj().imag.tanh()


def shapeless(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x.as_subclass(Shapeless)).tanh().as_subclass(Tensor)


def unreadable(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x.as_subclass(Unreadable)).tanh().as_subclass(Tensor)


def half_made(inner: nn.Linear, x: Tensor) -> Any:
    return inner(x) * HalfMade(x.detach().tanh()).wrapped


def two_tensors(inner: nn.Linear, x: Tensor) -> Any:
    pair: Any = TwoTensor(x.detach(), x.detach() * 2).sin().cos()
    return inner(x) * pair.a + pair.b


def empty(inner: nn.Linear, x: Tensor) -> Any:
    return torch.cat([inner(x).tanh(), inner(x[:0]).tanh()])


def _nested(layout: torch.layout) -> Callable[[], Tensor]:
    return lambda: torch.nested.nested_tensor(_rows(torch.randn(ROWS, WIDTH)), layout=layout)


KINDS = {
    **{each.__name__: Kind(each) for each in (strided_nested, strided_transposed, jagged, attends)},
    **{each.__name__: Kind(each) for each in (sparse_coo, sparse_csr, quantized, mkldnn, on_meta, functional, zeros)},
    **{each.__name__: Kind(each) for each in (negated, shapeless, unreadable, half_made, two_tensors, empty)},
    "strided_given": Kind(strided_given, _nested(torch.strided)),
    "jagged_given": Kind(jagged_given, _nested(torch.jagged)),
}


class Between(nn.Module):
    """Three blocks of plain layers, with what a kind does after the first."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind, self.inner = kind, nn.Linear(WIDTH, WIDTH)
        self.first, *others = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3))
        self.others = nn.ModuleList(others)

    def forward(self, x: Any) -> Any:
        x = self.kind.act(self.inner, self.first(x))
        for each in self.others:
            x = each(x)
        return x


def train(kind: Kind, budget: str | None) -> dict[str, str]:
    """Train a model of a kind for some steps; return digests of all losses and gradients."""
    torch.manual_seed(0)
    model = Between(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    if budget is not None:
        autockpt.apply(model, budget, seconds=0.1)
    found = {}
    for step in range(STEPS):
        loss = model(kind.batch()).square().mean()
        loss.backward()
        every = {"loss": loss, **{name: each.grad for name, each in model.named_parameters()}}
        found.update({f"{step} {name}": digest(each) for name, each in every.items() if each is not None})
        optimizer.step()
        optimizer.zero_grad()
    return found


def _main() -> None:
    gc.freeze()  # each recorded step collects garbage, and goes through all that torch's import has made
    logging.getLogger("autockpt").addHandler(handler := _Lines())
    for name in sys.argv[1:] or KINDS:
        handler.said.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plain, found = train(KINDS[name], None), train(KINDS[name], "lowest")
        said = [*handler.said, *(str(each.message) for each in caught)]
        wrong = [key for key in plain if plain[key] != found[key]]
        sys.stdout.write(f"{json.dumps({'kind': name, 'wrong': wrong, 'said': said})}\n")
        sys.stdout.flush()


class _Lines(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


if __name__ == "__main__":
    _main()
