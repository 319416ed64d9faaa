"""Stand-ins for kernels that write over their inputs and over what they have saved, through pointers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import sigmoid, silu

from tests.nets.kind import WIDTH, Block
from tests.toys.chains import feed_forward
from tests.toys.told import Told

__all__ = [
    "Loss",
    "LossInChild",
    "Normalises",
    "NormalisesGiven",
    "Overwrites",
    "OverwritesGiven",
    "Tiles",
    "emptied",
    "over_input",
    "poke",
]


def poke(tensor: Tensor, value: Tensor) -> Tensor:
    """Write as a kernel does that was given an address: no version counts it."""
    tensor.detach().numpy()[...] = value.detach().numpy()
    return tensor


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


def over_input(x: Tensor) -> Tensor:
    return OverInput.apply(x)  # type: ignore[no-untyped-call, no-any-return]


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


class LossInChild(Block):
    """A child writes over what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = Told(lambda own, logits: GradientOverLogits.apply(logits))  # type: ignore[no-untyped-call]

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


class OverwritesGiven(Overwrites):
    """What is overwritten in backward is given to a child: a boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.act = Told(lambda own, gate, up: Gated.apply(gate, up))  # type: ignore[no-untyped-call]

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


def emptied(x: Tensor) -> Tensor:
    return Empties.apply(x)  # type: ignore[no-untyped-call, no-any-return]


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


class Tiles(Block):
    def __init__(self) -> None:
        super().__init__()
        self.inner = feed_forward(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made = Tiled.apply(self.inner, x.tanh(), *self.inner.parameters())  # type: ignore[no-untyped-call]
        out: Tensor = self.scaled(x + made)
        return out
