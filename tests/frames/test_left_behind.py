"""A replay ends at its last slot: what forward changes for a while, and puts back only after that, is put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan, Segment
from tests.doors import install
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, WithLinear, batch, summed


class SameNoise(WithLinear):
    """Seeds the generator and puts it back, by hand."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).sin()
        state = torch.get_rng_state()
        torch.manual_seed(0)
        noise = torch.randn(WIDTH)
        y: Tensor = torch.tanh(x + noise)  # the last save
        torch.set_rng_state(state)
        return y


class TwoViews(nn.Module):
    """Switches its dropout off and on again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        noisy = self.dropout(self.linear(x)).tanh()
        self.dropout.eval()
        clean = self.dropout(self.linear(x)).tanh()
        self.dropout.train()
        result: Tensor = noisy + clean
        return result


class ThroughFrozen(WithLinear):
    """Freezes layers while it runs them."""

    def forward(self, x: Tensor) -> Tensor:
        self.linear.requires_grad_(False)
        y: Tensor = self.linear(x).tanh()
        self.linear.requires_grad_(True)
        return y


class WithOtherWeight(WithLinear):
    """Puts another tensor in the place of a parameter while it runs."""

    def forward(self, x: Tensor) -> Tensor:
        own, parameters = self.linear.weight, self.linear._parameters
        parameters["weight"] = own * 2  # type: ignore[assignment]
        y: Tensor = self.linear(x).tanh()
        parameters["weight"] = own  # type: ignore[assignment]
        return y


@pytest.mark.parametrize("kind", [SameNoise, TwoViews, ThroughFrozen, WithOtherWeight])
def test_what_forward_changes_for_a_while(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), kind(), nn.Dropout(0.3), nn.Linear(WIDTH, 1))
    assert_same(model, ["1"], summed)
    install(model, Plan.of(["1"]))
    summed(model).backward()
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())
    assert len(list(model.parameters())) == 6


class Annealed(nn.Module):
    """Counts its calls in a buffer, and reads the count."""

    def __init__(self, step: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.step: Tensor
        self.register_buffer("step", step)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.step.add_(1)
        return torch.tanh(self.linear(x) + 0.1 * self.step)


@pytest.mark.parametrize("buffers", [None, ("1.0.step", "1.1.step")], ids=["buffers unknown", "buffers named"])
def test_a_buffer_that_two_modules_of_a_member_share(buffers: tuple[str, ...] | None) -> None:
    """Each had a scratch copy of its own, so that the second did not read what the first wrote."""
    torch.manual_seed(0)
    step = torch.zeros(())
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(Annealed(step), Annealed(step)), nn.Linear(WIDTH, 1))
    assert_same(model, Plan(segments=(Segment(calls=("1#0",), buffers=buffers),)), summed)


class Relational(nn.Module):
    """Multiplies by two sparse matrices, or by one and its transpose."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.linear, self.transposed = nn.Linear(WIDTH, WIDTH), transposed
        for number in range(2):
            entries = torch.rand(4, 4)
            self.register_buffer(f"links{number}", (entries * (entries > 0.5)).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        other = self.links0.t() if self.transposed else self.links1  # type: ignore[operator]
        y = torch.sparse.mm(self.links0, self.linear(x))
        return torch.tanh(y + torch.sparse.mm(other, y))


@pytest.mark.parametrize("transposed", [False, True], ids=["two", "one and its transpose"])
@pytest.mark.parametrize("buffers", [None, ()], ids=["buffers unknown", "buffers named"])
def test_sparse_buffers_are_not_taken_for_each_other(buffers: tuple[str, ...] | None, transposed: bool) -> None:
    """A tensor without storage was taken for any buffer without one, and backward failed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Relational(transposed), nn.Linear(WIDTH, 1))
    assert_same(model, Plan(segments=(Segment(calls=("1#0",), buffers=buffers),)), summed)


class Scaled(WithLinear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x) * getattr(x, "scale", 1.0))


class Tagging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        x.scale = 3.0  # type: ignore[attr-defined]
        y: Tensor = self.scaled(x)
        return y


def test_what_python_has_put_on_an_argument() -> None:
    """The boundary was without it: a causal mask of torch's had lost its sizes, and a default was taken silently."""
    torch.manual_seed(0)
    assert_same(nn.Sequential(nn.Linear(WIDTH, WIDTH), Tagging(), nn.Linear(WIDTH, 1)), ["1.scaled"], summed)


class TaggingBetween(nn.Module):
    """Puts it on a result of one call for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scaled = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), Scaled()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x.scale = 3.0  # type: ignore[attr-defined]
        y: Tensor = self.scaled(x)
        return y


class Tagger(nn.Module):
    """Puts it on its own result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        x.scale = 3.0  # type: ignore[attr-defined]
        return x


def test_what_glue_puts_on_a_result_for_the_next_call_of_a_run() -> None:
    """The replay gave the next call the result without it, and a default was taken silently."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), TaggingBetween(), nn.Linear(WIDTH, 1))
    assert_same(model, [["1.first", "1.scaled"]], summed)


@pytest.mark.parametrize(
    "inner", [lambda: nn.Linear(WIDTH, WIDTH), nn.Identity, nn.Dropout], ids=["of its own", "an argument", "of noise"]
)
def test_what_a_kept_call_puts_on_its_result(inner: Callable[[], nn.Module]) -> None:
    """The replay handed the result out without it."""
    found = []
    for planned in (False, True):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(WIDTH, WIDTH), Tagger(inner()), Scaled())
        model = nn.Sequential(block, nn.Linear(WIDTH, 1))
        if planned:
            install(model, Plan(segments=(Segment(calls=("0#0",), keep=("0.1#0",)),)))
        found.append(steps(model, summed))
    assert found[0].differences(found[1]) == []


class InTheMidst(nn.Module):
    """Has a result require a gradient between two calls, as adapters do with that of a frozen embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        z = self.frozen(batch(4, WIDTH)).requires_grad_()
        result: Tensor = self.last(z) * y
        return result


def test_a_result_that_is_made_to_require_a_gradient_between_two_calls() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), InTheMidst(), nn.Linear(WIDTH, 1))
    assert_same(model, [["1.first", "1.frozen", "1.last"]], summed)


class Draws(nn.Module):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.linear, self.generator = nn.Linear(WIDTH, WIDTH), generator

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.bernoulli(torch.full((WIDTH,), 0.5), generator=self.generator)
        return torch.tanh(self.linear(x).sin() * noise)


def test_a_generator_that_only_kept_functions_draw_from() -> None:
    """The replay of the first call left it where it was after that: the next step drew the second's numbers again."""
    found = []
    for planned in (False, True):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(3)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Draws(generator), Draws(generator), nn.Linear(WIDTH, 1))
        if planned:
            segments = (Segment(calls=(f"{i}#0",), keep=(f"{i}#0/bernoulli#0",)) for i in (1, 2))
            install(model, Plan(segments=tuple(segments)))
        found.append(steps(model, summed, count=3))
    assert found[0].differences(found[1]) == []
