"""What forwards write beside the values of tensors: gradients, hooks and attributes of leaves, objects of torch's own.

A replay would do it again, so a call that does is kept, under a plan and by itself.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import autockpt
from autockpt import Plan

WIDTH = 8
STEPS = 4


class Writes(nn.Module):
    """A block that writes somewhere: `act` has the block and its input."""

    def __init__(self, act: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.inner, self.beside = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1, bias=False)
        self.leaf = torch.zeros(WIDTH, requires_grad=True)
        self.schedule = StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], 1.0), 1, 0.5)
        self.handles: list[Any] = []
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        self.act(self, x)
        scale = self.schedule.get_last_lr()[0] + getattr(self.leaf, "calls", 0)
        out: Tensor = (self.inner(x).tanh() * scale + self.leaf).sin()
        return out

    def left(self) -> list[Any]:
        """All that may have been written."""
        gradients = [each.grad for each in (*self.parameters(), self.leaf)]
        hooks = len(getattr(self.leaf, "_backward_hooks", None) or ())
        return [*gradients, hooks, getattr(self.leaf, "calls", 0), self.schedule.last_epoch]


def runs_a_backward(block: Any, x: Tensor) -> None:
    block.beside(x.detach()).square().mean().backward()


def adds_to_a_gradient(block: Any, x: Tensor) -> None:
    weight = block.beside.weight
    weight.grad = x.detach()[:1] + (0 if weight.grad is None else weight.grad)


def adds_in_place(block: Any, x: Tensor) -> None:
    weight = block.beside.weight
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    weight.grad += x.detach()[:1]


def hooks_a_leaf(block: Any, x: Tensor) -> None:
    block.handles.append(block.leaf.register_hook(lambda gradient: 2 * gradient))


def counts_at_a_leaf(block: Any, x: Tensor) -> None:
    block.leaf.calls = getattr(block.leaf, "calls", 0) + 1


def steps_a_schedule(block: Any, x: Tensor) -> None:
    block.schedule.step()


ACTS = (runs_a_backward, adds_to_a_gradient, adds_in_place, hooks_a_leaf, counts_at_a_leaf, steps_a_schedule)


def alike(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else bool(one == other)


@pytest.mark.filterwarnings("ignore:Detected call of", "ignore:Seems like")  # of a schedule before its optimizer
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("way", ["module", "method", "closure", "plan"])
def test_what_is_written_beside_values_is_written_once(
    act: Callable[[Any, Tensor], None], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    plain = Writes(act)
    block = copy.deepcopy(plain)
    run: Callable[[Tensor], Tensor] = block
    if way == "plan":
        run = autockpt.apply(nn.Sequential(block), plan=Plan.of(["0"]))
    else:
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "module": block,
            "method": block.forward,
            "closure": lambda x: block(x),
        }
        run = autockpt.recompute(functions[way])
    with caplog.at_level(logging.WARNING, "autockpt"):
        for number in range(STEPS):
            torch.manual_seed(number)
            x = torch.randn(4, WIDTH)
            plain(x).sum().backward()
            run(x).sum().backward()
            assert all(map(alike, block.left(), plain.left())), number
    assert any("which a replay would do again" in each.getMessage() for each in caplog.records)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # which torch itself uses for jvp
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.grad(lambda row: f(row).sum()),
        lambda f: torch.func.jacrev(f),
        lambda f: lambda x: torch.func.vjp(f, x)[0],
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
    ],
    ids=["grad", "jacrev", "vjp", "jvp"],
)
def test_a_function_that_uses_torch_func_inside_is_as_plain(transform: Any) -> None:
    weight = torch.randn(WIDTH, requires_grad=True)
    inner = transform(lambda x: (x * weight).tanh())

    def function(x: Tensor) -> Tensor:
        out: Tensor = (inner(x) * weight).sin()
        return out

    again = autockpt.recompute(function)
    for _ in range(3):
        x, gradients = torch.randn(WIDTH), []
        for each in (function, again):
            each(x).sum().backward()
            gradients.append(weight.grad)
            weight.grad = None
        assert gradients[0] is not None and gradients[1] is not None and torch.equal(gradients[0], gradients[1])


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_scripted_modules_inside_a_function_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    scripted: Any = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    outer = nn.Sequential(scripted, nn.Linear(WIDTH, WIDTH))
    for function in (scripted, outer, lambda x: outer(x).sin()):
        caplog.clear()
        again = autockpt.recompute(function)
        for _ in range(2):
            again(torch.randn(2, WIDTH)).sum().backward()
        assert "contains a scripted module" in caplog.text
