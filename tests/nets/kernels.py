"""Kinds of what kernels of other libraries do, in stand-ins that a CPU can run.

They save on `ctx` what no hook sees, write through pointers what no version counts, and keep scales in objects, classes
and globals. `docs/limits.md` says which library does which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, sigmoid, silu

from tests.nets.kind import WIDTH, Block, Kind, Outcome, batch_of

__all__ = ["KERNELS", "poke"]

LONGEST = 4
"""Steps that a history of scales has."""


def poke(tensor: Tensor, value: Tensor) -> Tensor:
    """Write as a kernel does that was given an address: no version counts it."""
    tensor.detach().numpy()[...] = value.detach().numpy()
    return tensor


class OnContext(torch.autograd.Function):
    """Keeps what it reads in backward as attributes, as bitsandbytes does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        half = weight.half().float()
        ctx.tensors = x, half
        return x @ half.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.tensors
        return gradients[0] @ weight, gradients[0].T @ x


class State:
    """A weight's codes and scales, which forward and backward share."""

    def __init__(self, weight: Tensor) -> None:
        self.codes, self.scales = quantized(weight)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.detach().abs().amax(1, keepdim=True) / 127
    return (weight.detach() / scales).round().to(torch.int8), scales


class Shared(torch.autograd.Function):
    """Reads in backward what the last forward has left in the state of the layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, state: State) -> Tensor:
        state.codes, state.scales = quantized(weight)
        ctx.state, ctx.x = state, x
        return x @ (state.codes * state.scales).T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0] @ (ctx.state.codes * ctx.state.scales), gradients[0].T @ ctx.x, None


class Attributes(Block):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(gelu(OnContext.apply(x, self.widen.weight)))  # type: ignore[no-untyped-call]
        return out


class Quantizes(Block):
    """Codes a weight in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(self.widen.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = Shared.apply(x, self.widen.weight, self.state)  # type: ignore[no-untyped-call]
        out: Tensor = x + self.narrow(gelu(wide))
        return out


class Adapted(nn.Module):
    """A frozen weight of codes with scales in an object of its own, beside an adapter."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(WIDTH, WIDTH) / WIDTH
        self.state = State(weight)
        self.codes = nn.Parameter(self.state.codes, requires_grad=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        base = linear(x, self.codes * self.state.scales)
        out: Tensor = x + base + self.down(gelu(self.up(x)))
        return out


class OverInput(torch.autograd.Function):
    """Writes its result over its input, through a pointer, and tells nobody."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        poke(x, x.tanh())
        ctx.save_for_backward(x.detach())
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (made,) = ctx.saved_tensors
        gradient: Tensor = gradients[0] * (1 - made.square())
        return gradient


class Inside(Block):
    """Writes over what it has made itself."""

    def forward(self, x: Tensor) -> Tensor:
        made = OverInput.apply(self.widen(x))  # type: ignore[no-untyped-call]
        out: Tensor = x + self.narrow(made)
        return out


class OverGiven(Block):
    """Writes over what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        written: Tensor = OverInput.apply(x)  # type: ignore[no-untyped-call]
        return self.scaled(written)


class SaysSo(torch.autograd.Function):
    """Normalises over its input through a pointer, says that it is changed, and moves statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor) -> Tensor:
        own = x.mean(0)
        mean.mul_(0.9).add_(own, alpha=0.1)
        poke(x, (x - own).tanh())
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        inner = gradients[0] * (1 - made.square())
        return inner - inner.mean(0), None


class Normalises(Block):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4 * WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        made = SaysSo.apply(self.widen(x), self.mean)  # type: ignore[no-untyped-call]
        out: Tensor = x + self.narrow(made)
        return out


class NormalisesGiven(Block):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = SaysSo.apply(x, self.mean)  # type: ignore[no-untyped-call]
        return self.scaled(made)


class GradientOverLogits(torch.autograd.Function):
    """Writes the gradient over the logits in forward, and scales it there in backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        shares = logits.softmax(-1)
        loss = -shares[:, 0].log().mean()
        shares[:, 0] -= 1
        ctx.save_for_backward(poke(logits, shares / len(logits)).detach())
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        return poke(saved, saved * gradients[0])


class Loss(Block):
    """Adds a loss of its own to what it returns."""

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = GradientOverLogits.apply(self.widen(x))  # type: ignore[no-untyped-call]
        return self.scaled(x) + loss


class LossOfGiven(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        made: Tensor = GradientOverLogits.apply(logits)  # type: ignore[no-untyped-call]
        return made


class LossInChild(Block):
    """A child writes over what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = LossOfGiven()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scaled(x) + self.loss(self.widen(x))
        return out


class Gated(torch.autograd.Function):
    """Writes the gradients over what it has saved, in backward."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (given,), (gate, up) = gradients, ctx.saved_tensors
        part = sigmoid(gate)
        of_gate, of_up = given * up * part * (1 + gate * (1 - part)), given * silu(gate)
        return poke(gate, of_gate), poke(up, of_up)


class Overwrites(Block):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made = Gated.apply(self.gate(x), self.widen(x))  # type: ignore[no-untyped-call]
        out: Tensor = x + self.narrow(made)
        return out


class Act(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        made: Tensor = Gated.apply(gate, up)  # type: ignore[no-untyped-call]
        return made


class OverwritesGiven(Overwrites):
    """What is overwritten in backward is given to a child: a boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.act = Act()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(self.act(self.gate(x), self.widen(x)))
        return out


class Empties(torch.autograd.Function):
    """Lets go of what it has saved as it reads it, past autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient: Tensor = gradients[0] * (1 - x.tanh().square())
        x.data = torch.empty(0)
        return gradient


class LetsGo(Block):
    def forward(self, x: Tensor) -> Tensor:
        made = Empties.apply(self.widen(x))  # type: ignore[no-untyped-call]
        out: Tensor = x + self.narrow(made)
        return out


class Tiled(torch.autograd.Function):
    """Runs a module without gradients in forward, and in backward once more with them, a part at a time."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return torch.cat([run(part) for part in x.chunk(2)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        parts = [part.detach().requires_grad_() for part in x.chunk(2)]
        for part, gradient in zip(parts, gradients[0].chunk(2), strict=True):
            with torch.enable_grad():
                made = ctx.run(part)
            torch.autograd.backward(made, gradient)
        return None, torch.cat([part.grad for part in parts if part.grad is not None]), *[None] * 4


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.narrow(gelu(self.widen(x)))
        return made


class Tiles(Block):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        made = Tiled.apply(self.inner, x.tanh(), *self.inner.parameters())  # type: ignore[no-untyped-call]
        out: Tensor = self.scaled(x + made)
        return out


class Scaling(Block):
    """Scales by the largest value that it has seen in some steps, and rolls that history, wherever it is."""

    def __init__(self, history: Callable[[Scaling], Tensor], roll: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.history, self.roll = history, roll
        self.amax = torch.ones(LONGEST)
        self.meta = {"forward": State(torch.ones(LONGEST, LONGEST))}
        self.meta["forward"].scales = torch.ones(LONGEST)

    def forward(self, x: Tensor) -> Tensor:
        history = self.history(self)
        scale = history.amax().clone()
        self.roll(history, torch.cat([x.detach().abs().amax().reshape(1), history[:-1]]))
        rounded = x + ((x / scale * 16).round() / 16 * scale - x).detach()
        return self.scaled(rounded)


def in_attribute(block: Scaling) -> Tensor:
    return block.amax


def in_object(block: Scaling) -> Tensor:
    return block.meta["forward"].scales


HISTORIES: dict[str, Tensor] = {}


def in_global(block: Scaling) -> Tensor:
    return HISTORIES.setdefault("all", torch.ones(LONGEST))


def seen(history: Tensor, new: Tensor) -> None:
    history.copy_(new)


class OfClass:
    """What is on, and the scales of every layer, rolled as a context ends."""

    on = False
    histories: list[Tensor] = []  # noqa: RUF012 - as it is in libraries


class InContext(Block):
    """Rounds while a class says so, by a scale of the class's."""

    def forward(self, x: Tensor) -> Tensor:
        if not OfClass.on:
            return self.scaled(x)
        scale = OfClass.histories[0].amax().clone()
        poke(OfClass.histories[0][:1], torch.maximum(OfClass.histories[0][:1], x.detach().abs().amax()))
        return self.scaled(x + ((x / scale * 16).round() / 16 * scale - x).detach())


@contextlib.contextmanager
def eight_bits() -> Iterator[None]:
    """On in forward only; what was seen there is rolled at its end."""
    OfClass.on = True
    yield
    OfClass.on = False
    poke(OfClass.histories[0], OfClass.histories[0].roll(1))


def in_context(model: nn.Module, number: int, late: bool) -> Tensor:
    with eight_bits():
        loss: Tensor = model(batch_of(number)).square().mean()
    loss.backward()
    return loss


class Statistics(Block):
    """A normalisation that moves its statistics through pointers."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = self.scaled(x - self.mean.clone())
        poke(self.mean, self.mean * 0.9 + x.detach().mean(0) * 0.1)
        return out


class Workspace(Block):
    """A cast of the weight, made anew through a pointer where the weight has another version."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace, self.made_of = torch.empty(4 * WIDTH, WIDTH), -1

    def forward(self, x: Tensor) -> Tensor:
        if self.made_of != self.widen.weight._version:
            poke(self.workspace, self.widen.weight.half().float())
            self.made_of = self.widen.weight._version
        wide = x @ self.workspace.T + linear(x, self.widen.weight) * 0.1
        out: Tensor = x + self.narrow(gelu(wide))
        return out


LOCKS = torch.zeros(8, dtype=torch.int32)


class Locks(Block):
    """A kernel whose blocks count in a global, and leave it as they found it."""

    def forward(self, x: Tensor) -> Tensor:
        poke(LOCKS, LOCKS + 1)
        out = self.scaled(x, float(LOCKS.sum() / 8))
        poke(LOCKS, LOCKS - 1)
        return out


@torch.library.custom_op("autockpt_tests::says_that_it_writes", mutates_args=("x",))
def says_that_it_writes(x: Tensor) -> Tensor:
    return x.tanh()


@torch.library.custom_op("autockpt_tests::writes_and_does_not_say", mutates_args=())
def writes_and_does_not_say(x: Tensor) -> Tensor:
    return poke(x, x.tanh()).sign()


@torch.library.custom_op("autockpt_tests::normed", mutates_args=())
def normed(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.square().mean(-1, keepdim=True).rsqrt()
    return x * scale, scale


def _keep(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output)


def _of_normed(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
    made, scale = ctx.saved_tensors
    found: Tensor = scale * (gradient - made * (gradient * made).mean(-1, keepdim=True))
    return found


normed.register_autograd(_of_normed, setup_context=_keep)


class Norms(Block):
    """Runs an operator that has a backward of its own, and saves its results."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(gelu(self.widen(normed(x)[0])))
        return out


class Declared(torch.autograd.Function):
    """Runs an operator whose schema says other things of its argument than are true."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, true: bool) -> Tensor:
        made: Tensor = writes_and_does_not_say(x) * x if true else says_that_it_writes(x)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        return gradients[0] * (1 - made.square()), None


class Declares(Block):
    def __init__(self, true: bool) -> None:
        super().__init__()
        self.true = true

    def forward(self, x: Tensor) -> Tensor:
        made = Declared.apply(self.widen(x), self.true)  # type: ignore[no-untyped-call]
        out: Tensor = x + self.narrow(made)
        return out


class DeclaresOfGiven(Declares):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = Declared.apply(x, self.true)  # type: ignore[no-untyped-call]
        return self.scaled(made)


def begin_anew() -> None:
    HISTORIES.clear()
    OfClass.on, OfClass.histories = False, [torch.ones(LONGEST)]
    LOCKS.zero_()


def outside() -> object:
    return [*HISTORIES.values()], OfClass.histories, OfClass.on, LOCKS


def _kind(name: str, block: Callable[[], nn.Module], given: Outcome = Outcome.REFUSED, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, begin=begin_anew, outside=outside, **others)


def _scaling(history: Callable[[Scaling], Tensor], roll: Callable[[Tensor, Tensor], object]) -> Callable[[], nn.Module]:
    return lambda: Scaling(history, roll)


def _recomputed(name: str, block: Callable[[], nn.Module]) -> Kind:
    return _kind(name, block, Outcome.EXACT, planned=(Outcome.EXACT,))


KERNELS: tuple[Kind, ...] = (
    _kind("tensors on ctx", Attributes, Outcome.EXACT),
    _kind("codes that every forward makes anew", Quantizes),
    _recomputed("codes with scales in an object", Adapted),
    _recomputed("a result over what the block made", Inside),
    _kind("a result over what the block was given", OverGiven),
    _recomputed("a normalisation over what the block made, and it says so", Normalises),
    _kind("a normalisation over what the block was given, and it says so", NormalisesGiven),
    _recomputed("a gradient over logits in forward", Loss),
    _kind("a gradient over logits that a child was given", LossInChild, Outcome.EXACT),
    _recomputed("gradients over what was saved", Overwrites),
    _recomputed("gradients over what a child was given", OverwritesGiven),
    _recomputed("what was saved emptied in backward", LetsGo),
    _kind("a module that runs in backward, in parts", Tiles, Outcome.EXACT),
    *(
        _kind(f"a history of scales {where.__name__}, {how.__name__}", _scaling(where, how))
        for where in (in_attribute, in_object, in_global)
        for how in (seen, poke)
    ),
    _kind("scales of a class, on in a context", InContext, step=in_context),
    _kind("statistics moved through pointers", Statistics, Outcome.EXACT),
    _kind("a cast kept until the weight changes", Workspace, Outcome.EXACT),
    _kind("locks that end as they began", Locks),  # a replay ends before they do
    _recomputed("an operator with a backward of its own", Norms),
    _kind("an operator that is said to write", lambda: Declares(False), Outcome.EXACT),
    _kind("an operator that writes and does not say so", lambda: Declares(True), Outcome.EXACT),
    _kind("an operator that is said to write what was given", lambda: DeclaresOfGiven(False)),
    _kind("an operator that writes what was given", lambda: DeclaresOfGiven(True)),
)
