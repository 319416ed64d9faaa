"""Kinds of things that are on around forward only, and of tensors that change behind a replay's back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, rrelu

from tests.nets.kind import LOUD, WIDTH, Block, Kind, Network, Outcome, Step, Within, batch_of, layers
from tests.toys.told import around

__all__ = ["SURROUNDINGS"]

Around = Callable[[nn.Module], contextlib.AbstractContextManager[object]]


def only_around_forward(around: Around, *, from_late: bool = False) -> Step:
    """A step with something on while forward runs, and off in backward."""

    def step(model: nn.Module, number: int, late: bool) -> Tensor:
        with around(model) if late or not from_late else contextlib.nullcontext():
            loss: Tensor = model(batch_of(number)).square().mean()
        loss.backward()
        return loss

    return step


@contextlib.contextmanager
def hooks(model: nn.Module) -> Iterator[None]:
    handles = [each.widen.register_forward_hook(lambda module, args, out: out * 1.5) for each in layers(model)]
    yield
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def hook_on_all_modules(model: nn.Module) -> Iterator[None]:
    def larger(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        return out * 1.01 if isinstance(module, nn.Linear) else None

    handle = nn.modules.module.register_module_forward_hook(larger)  # type: ignore[arg-type]
    yield
    handle.remove()


@contextlib.contextmanager
def forward_replaced(model: nn.Module) -> Iterator[None]:
    for each in layers(model):
        each.widen.forward = lambda x, layer=each.widen: nn.functional.linear(x, layer.weight) * 2
    yield
    for each in layers(model):
        del each.widen.forward


class Averaging(Block):
    """Moves a buffer that it has read."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = self.scaled(x + self.mean)
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return out


class Codebook(Block):
    """Looks the nearest code up, and moves the codes in every second call."""

    codes: Tensor
    calls: Tensor

    def __init__(self, write: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("codes", torch.randn(16, WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        found = self.codes[torch.cdist(x, self.codes).argmin(-1)]
        y = x + (found - x).detach() * 0.5
        self.calls += 1
        if int(self.calls) % 2 == 0:
            self.write(self.codes, self.codes * 0.9 + x.detach().mean(0) * 0.1)
        return self.scaled(y)


class Shrinks(Block):
    """Changes its own weight in every forward."""

    def __init__(self, shrink: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.shrink = shrink

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.shrink(self.widen.weight)
        return self.scaled(x)


class WritesThrough(Block):
    """Writes behind autograd's back into what was saved, or will be."""

    def __init__(self, after: bool) -> None:
        super().__init__()
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.widen(x)
        out = gelu(hidden) if self.after else hidden
        hidden.data.mul_(1.1)
        result: Tensor = x + self.narrow(out if self.after else gelu(out))
        return result


class Scripted(Block):
    def __init__(self) -> None:
        super().__init__()
        self.widen = torch.jit.script(self.widen)  # type: ignore[assignment]


class Given(Block):
    """Updates statistics that it was given."""

    def forward(self, x: Tensor, statistics: Tensor) -> Tensor:  # type: ignore[override]
        with torch.no_grad():
            statistics.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.scaled(x + statistics)


class Giving(Network):
    statistics: Tensor

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__(block)
        self.register_buffer("statistics", torch.zeros(WIDTH))

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, self.statistics)
        return x


class Casts(Block):
    """Computes in another precision, in the manner of mixed precision by hand, and keeps the cast weight."""

    def __init__(self) -> None:
        super().__init__()
        self.cast: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.cast = self.widen.weight.double()
        wide = nn.functional.linear(x.double(), self.cast, self.widen.bias.double())
        out: Tensor = x + self.narrow(gelu(wide).float())
        return out


@contextlib.contextmanager
def weights_cast(model: nn.Module) -> Iterator[None]:
    """Weights of another precision while forward runs, as sharded training with mixed precision has them."""
    kept = [(layer, layer.widen) for layer in layers(model)]
    for layer, whole in kept:
        double = nn.Linear(WIDTH, 4 * WIDTH, dtype=torch.float64)
        del double.weight, double.bias
        double.weight, double.bias = whole.weight.double(), whole.bias.double()
        layer.widen = around(double, lambda double, x: double(x.double()).float())
    yield
    for layer, whole in kept:
        layer.widen = whole


FEATURES: list[Tensor] = []


class Featured(Network):
    """Hooks of the user's collect features, which the loss reads."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__(block)
        for layer in self.layers:
            layer.register_forward_hook(lambda module, args, out: FEATURES.append(out))


def with_features(model: nn.Module, number: int, late: bool) -> Tensor:
    FEATURES.clear()
    loss: Tensor = model(batch_of(number)).square().mean()
    loss = loss + torch.stack([each.square().mean() for each in FEATURES]).sum() * len(FEATURES)
    loss.backward()
    FEATURES.clear()
    return loss


def _kind(name: str, given: Outcome, block: Callable[[], nn.Module] = Block, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, **others)


def onednn_off(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    off: contextlib.AbstractContextManager[object] = torch.backends.mkldnn.flags(enabled=False)
    return off


SURROUNDINGS: tuple[Kind, ...] = (
    _kind("hooks around forward only", Outcome.EXACT, step=only_around_forward(hooks)),
    _kind("a hook on all modules around forward only", Outcome.EXACT, step=only_around_forward(hook_on_all_modules)),
    _kind("hooks around forward only, later", Outcome.EXACT, step=only_around_forward(hooks, from_late=True)),
    _kind("a replaced forward of a child", Outcome.EXACT, step=only_around_forward(forward_replaced)),
    _kind("oneDNN off around forward only", Outcome.EXACT, step=only_around_forward(onednn_off)),
    _kind(
        "weights cast around forward only",
        Outcome.EXACT,
        step=only_around_forward(weights_cast),
        waits={"planned": "where modules are replaced every step is recorded anew; that is said, with no call named"},
    ),
    _kind("weights cast inside", Outcome.EXACT, Casts),
    _kind("hooks that collect features", Outcome.EXACT, network=Featured, step=with_features),
    _kind("a buffer that is read and moved", Outcome.EXACT, Averaging),
    _kind(
        "a codebook that is copied into",
        Outcome.EXACT,
        lambda: Codebook(Tensor.copy_),
        planned=LOUD,
    ),
    _kind(
        "a codebook whose data is",
        Outcome.EXACT,
        lambda: Codebook(lambda codes, new: codes.data.copy_(new)),
        planned=LOUD,
    ),
    _kind("nn.RReLU", Outcome.REFUSED, lambda: Within(nn.RReLU())),
    _kind(
        "rrelu as a function",
        Outcome.RAISES,
        lambda: Within(lambda x: rrelu(x, training=True)),
        waits={
            "planned": "no step with one can be recorded in place: a named error, and no way on but to give a batch"
        },
    ),
    _kind("a parameter changed in place", Outcome.REFUSED, lambda: Shrinks(lambda weight: weight.mul_(0.99))),
    _kind(
        "a parameter's data changed",
        Outcome.REFUSED,
        lambda: Shrinks(lambda weight: weight.data.mul_(0.99)),
    ),
    _kind("a write through data before it is saved", Outcome.EXACT, lambda: WritesThrough(False)),
    _kind("a scripted module", Outcome.REFUSED, Scripted),
    _kind("statistics that a block is given", Outcome.REFUSED, Given, network=Giving),
)
