"""A replay ends at its last slot: what forward changes for a while, and puts back only after that, is put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan, Segment
from tests.doors import install
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, batch, summed
from tests.toys.told import Told, around, with_linear


def same_noise(own: Told, x: Tensor) -> Tensor:
    """Seeds the generator and puts it back, by hand."""
    x = own.linear(x).sin()
    state = torch.get_rng_state()
    torch.manual_seed(0)
    noise = torch.randn(WIDTH)
    y: Tensor = torch.tanh(x + noise)  # the last save
    torch.set_rng_state(state)
    return y


def two_views(own: Told, x: Tensor) -> Any:
    """Switches its dropout off and on again."""
    noisy = own.dropout(own.linear(x)).tanh()
    own.dropout.eval()
    clean = own.dropout(own.linear(x)).tanh()
    own.dropout.train()
    return noisy + clean


def through_frozen(own: Told, x: Tensor) -> Any:
    """Freezes layers while it runs them."""
    own.linear.requires_grad_(False)
    y = own.linear(x).tanh()
    own.linear.requires_grad_(True)
    return y


def with_other_weight(own: Told, x: Tensor) -> Any:
    """Puts another tensor in the place of a parameter while it runs."""
    weight, parameters = own.linear.weight, own.linear._parameters
    parameters["weight"] = weight * 2
    y = own.linear(x).tanh()
    parameters["weight"] = weight
    return y


@pytest.mark.parametrize("act", [same_noise, two_views, through_frozen, with_other_weight])
def test_what_forward_changes_for_a_while(act: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    middle = with_linear(act, dropout=nn.Dropout(0.5))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), middle, nn.Dropout(0.3), nn.Linear(WIDTH, 1))
    assert_same(model, ["1"], summed)
    install(model, Plan.of(["1"]))
    summed(model).backward()
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())
    assert len(list(model.parameters())) == 6


def annealed(own: Told, x: Tensor) -> Tensor:
    """Counts its calls in a buffer, and reads the count."""
    with torch.no_grad():
        own.step.add_(1)
    return torch.tanh(own.linear(x) + 0.1 * own.step)


@pytest.mark.parametrize("buffers", [None, ("1.0.step", "1.1.step")], ids=["buffers unknown", "buffers named"])
def test_a_buffer_that_two_modules_of_a_member_share(buffers: tuple[str, ...] | None) -> None:
    """Each had a scratch copy of its own, so that the second did not read what the first wrote."""
    torch.manual_seed(0)
    step = torch.zeros(())
    two = nn.Sequential(*(with_linear(annealed, step=step) for _ in range(2)))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), two, nn.Linear(WIDTH, 1))
    assert_same(model, Plan(segments=(Segment(calls=("1#0",), buffers=buffers),)), summed)


def relational(transposed: bool) -> nn.Module:
    """Multiplies by two sparse matrices, or by one and its transpose."""

    def act(own: Told, x: Tensor) -> Tensor:
        y = torch.sparse.mm(own.links0, own.linear(x))
        return torch.tanh(y + torch.sparse.mm(own.links0.t() if transposed else own.links1, y))

    made = with_linear(act)
    for number in range(2):
        entries = torch.rand(4, 4)
        made.register_buffer(f"links{number}", (entries * (entries > 0.5)).to_sparse())
    return made


@pytest.mark.parametrize("transposed", [False, True], ids=["two", "one and its transpose"])
@pytest.mark.parametrize("buffers", [None, ()], ids=["buffers unknown", "buffers named"])
def test_sparse_buffers_are_not_taken_for_each_other(buffers: tuple[str, ...] | None, transposed: bool) -> None:
    """A tensor without storage was taken for any buffer without one, and backward failed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), relational(transposed), nn.Linear(WIDTH, 1))
    assert_same(model, Plan(segments=(Segment(calls=("1#0",), buffers=buffers),)), summed)


def scaled() -> nn.Module:
    return with_linear(lambda own, x: torch.tanh(own.linear(x) * getattr(x, "scale", 1.0)))


def tags(x: Any) -> Any:
    x.scale = 3.0
    return x


def test_what_python_has_put_on_an_argument() -> None:
    """The boundary was without it: a causal mask of torch's had lost its sizes, and a default was taken silently."""
    torch.manual_seed(0)
    tagging = around(scaled(), lambda inner, x: inner(tags(x * 1.0)))
    assert_same(nn.Sequential(nn.Linear(WIDTH, WIDTH), tagging, nn.Linear(WIDTH, 1)), ["1.inner"], summed)


def test_what_glue_puts_on_a_result_for_the_next_call_of_a_run() -> None:
    """The replay gave the next call the result without it, and a default was taken silently."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    between = Told(lambda own, x: own.scaled(tags(own.first(x))), first=first, scaled=scaled())
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), between, nn.Linear(WIDTH, 1))
    assert_same(model, [["1.first", "1.scaled"]], summed)


@pytest.mark.parametrize(
    "inner", [lambda: nn.Linear(WIDTH, WIDTH), nn.Identity, nn.Dropout], ids=["of its own", "an argument", "of noise"]
)
def test_what_a_kept_call_puts_on_its_result(inner: Callable[[], nn.Module]) -> None:
    """The replay handed the result out without it."""
    found = []
    for planned in (False, True):
        torch.manual_seed(0)
        tagger = around(inner(), lambda inner, x: tags(inner(x)))
        block = nn.Sequential(nn.Linear(WIDTH, WIDTH), tagger, scaled())
        model = nn.Sequential(block, nn.Linear(WIDTH, 1))
        if planned:
            install(model, Plan(segments=(Segment(calls=("0#0",), keep=("0.1#0",)),)))
        found.append(steps(model, summed))
    assert found[0].differences(found[1]) == []


def in_the_midst(own: Told, x: Tensor) -> Any:
    """Has a result require a gradient between two calls, as adapters do with that of a frozen embedding."""
    y = own.first(x).tanh()
    return own.last(own.frozen(batch(4, WIDTH)).requires_grad_()) * y


def test_a_result_that_is_made_to_require_a_gradient_between_two_calls() -> None:
    torch.manual_seed(0)
    parts = {"first": nn.Linear(WIDTH, WIDTH), "frozen": nn.Linear(WIDTH, WIDTH).requires_grad_(False)}
    last = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Told(in_the_midst, **parts, last=last), nn.Linear(WIDTH, 1))
    assert_same(model, [["1.first", "1.frozen", "1.last"]], summed)


def draws(own: Told, x: Tensor) -> Tensor:
    noise = torch.bernoulli(torch.full((WIDTH,), 0.5), generator=own.generator)
    return torch.tanh(own.linear(x).sin() * noise)


def test_a_generator_that_only_kept_functions_draw_from() -> None:
    """The replay of the first call left it where it was after that: the next step drew the second's numbers again."""
    found = []
    for planned in (False, True):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(3)
        drawing = (with_linear(draws, generator=generator) for _ in range(2))
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *drawing, nn.Linear(WIDTH, 1))
        if planned:
            segments = (Segment(calls=(f"{i}#0",), keep=(f"{i}#0/bernoulli#0",)) for i in (1, 2))
            install(model, Plan(segments=tuple(segments)))
        found.append(steps(model, summed, count=3))
    assert found[0].differences(found[1]) == []
