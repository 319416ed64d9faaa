"""Remade units: products by what a unit saves, such as the noise of a dropout, are made again instead of being held."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from autockpt._check.measure import measure
from autockpt._data.errors import InvalidFile, NotApplicable
from autockpt._data.plan import Plan, Segment
from autockpt._run.frames.products import Product
from autockpt._run.install import install
from tests.run.frames.comparing import assert_same
from tests.run.frames.models import WIDTH, batch, penalised, summed
from tests.run.frames.test_units import Block, Stack

ATTENTION = "blocks.1#0/scaled_dot_product_attention#0"


def plan(keep: list[str], skip: list[str], remake: list[str], calls: tuple[str, ...] = ("blocks.1#0",)) -> Plan:
    return Plan(segments=(Segment(calls=calls, keep=tuple(keep), skip=tuple(skip), remake=tuple(remake)),))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """Those that were made again."""
    made: list[Product] = []
    again = Product.again

    def noting(self: Product, arguments: list[Tensor]) -> Tensor:
        made.append(self)
        return again(self, arguments)

    monkeypatch.setattr(Product, "again", noting)
    return made


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def sequence(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(layer() for layer in layers))


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


@pytest.mark.parametrize(
    ("keep", "skip", "n_products"),
    [
        (["blocks.1.dropout#0"], [], 1),
        (["blocks.1.dropout#0/dropout#0", "blocks.1.out#0"], [], 1),
        ([ATTENTION], [], 1),
        (["blocks.1#0/add#0", "blocks.1#0/flatten#0"], [ATTENTION, "blocks.1.out#0", "blocks.1.dropout#0"], 1),
        ([ATTENTION, "blocks.1.dropout#0", "blocks.1.qkv#0"], ["blocks.1.dropout#1"], 2),
    ],
    ids=str,
)
def test_units_of_a_block(products: list[Product], keep: list[str], skip: list[str], n_products: int) -> None:
    remake = [unit for unit in (*keep, *skip) if "dropout" in unit or unit == ATTENTION]
    assert_same(Stack(), plan(keep, skip, remake), summed)
    assert len(products) == 2 * n_products  # in two steps; the last dropout's result nothing reads


def test_units_of_a_run(products: list[Product]) -> None:
    calls = tuple(f"blocks.{i}#0" for i in range(3))
    units = [f"blocks.{i}{unit}" for i in range(3) for unit in (".dropout#0", "#0/scaled_dot_product_attention#0")]
    assert_same(Stack(), plan(units, [], units, calls), summed)
    assert len(products) == 2 * 6


class Draws(TorchDispatchMode):
    """Counts draws of noise."""

    count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket is torch.ops.aten.bernoulli_
        return func(*args, **(kwargs or {}))


def test_noise_is_drawn_once() -> None:
    def drawn_in_backward(keep: list[str], remake: list[str]) -> int:
        model = Stack(sequence(linear, lambda: nn.Dropout(0.5), nn.Tanh, linear), depth=1)
        install(model, plan(keep, [], remake, ("blocks.0#0",)))
        loss = summed(model)
        with Draws() as draws:  # type: ignore[no-untyped-call]
            loss.backward()
        return int(draws.count)

    assert drawn_in_backward([], []) == 1
    assert drawn_in_backward(["blocks.0.1#0"], ["blocks.0.1#0"]) == 0


def test_what_stays_is_the_noise() -> None:
    """After forward: the segment's input, the noise, and the result only where the unit is not remade."""
    rows = 1 << 12

    def after_forward(keep: list[str], remake: list[str]) -> int:
        model = Stack(sequence(nn.Tanh, lambda: nn.Dropout(0.5), nn.Sigmoid, nn.Sigmoid), depth=1)
        install(model, plan(keep, [], remake, ("blocks.0#0",)))
        x = torch.ones(rows, WIDTH, requires_grad=True)
        kept: list[Tensor] = []
        measured = measure(lambda: kept.append(model(x).sum()))
        return (measured.end_bytes - measured.start_bytes) // (rows * WIDTH * 4)

    unit = ["blocks.0.1#0"]
    # The head saves the block's result in any case; the input is the caller's.
    assert [after_forward(*units) for units in (([], []), (unit, unit), (unit, []))] == [1, 2, 3]


class Forgets(nn.Module):
    """Has let go of its product, and of the storage, when it saves something else."""

    def forward(self, x: Tensor) -> Tensor:
        noisy = nn.functional.dropout(x, 0.5)
        wave = noisy.sin()  # saves its argument
        del noisy
        return wave.exp()  # saves its result


def test_what_is_saved_where_a_product_was_is_not_that_product() -> None:
    """Storages were told apart by their address alone, so that a later tensor was taken for the product."""
    unit = ["blocks.0.1#0"]
    model = Stack(sequence(linear, Forgets, linear), depth=1)
    assert_same(model, plan(unit, [], unit, ("blocks.0#0",)), summed)


def test_a_product_seen_as_complex_numbers_is_not_that_product(products: list[Product]) -> None:
    """A view of real numbers was handed back."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH // 2, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            pairs = nn.functional.dropout(x, 0.5).unflatten(-1, (WIDTH // 2, 2))
            return torch.view_as_real(torch.view_as_complex(pairs) * self.weight).flatten(-2)

    unit = ["blocks.0.1#0"]
    model = Stack(sequence(linear, Pairs, linear), depth=1)
    assert_same(model, plan(unit, [], unit, ("blocks.0#0",)), summed)
    assert not products


def test_what_is_multiplied_again_on_another_device(products: list[Product]) -> None:
    """What stood for it was of the CPU and of the default dtype, and could not be set to it."""
    with torch.device("meta"):
        model = Stack(sequence(linear, nn.GELU, lambda: nn.Dropout(0.5), linear)).to(torch.bfloat16)
    install(model, plan(["blocks.1.2#0"], [], ["blocks.1.2#0"]))
    model(torch.empty(4, WIDTH, device="meta", dtype=torch.bfloat16)).sum().backward()
    assert len(products) == 1
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_is_multiplied_again_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay's graph once led from the product to its factor, so that this lived until the replay ended."""
    factors: list[StorageWeakRef] = []
    gone: list[bool] = []
    again = Product.again

    def noting(self: Product, arguments: list[Tensor]) -> Tensor:
        factors.extend(StorageWeakRef(argument.untyped_storage()) for argument in arguments)
        return again(self, arguments)

    class Later(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            gone.extend(factor.expired() for factor in factors)
            return x.sin()

    monkeypatch.setattr(Product, "again", noting)
    model = Stack(sequence(linear, nn.GELU, lambda: nn.Dropout(0.5), linear, Later, linear))
    install(model, plan(["blocks.1.2#0"], [], ["blocks.1.2#0"]))
    summed(model).backward()
    assert gone == [True]


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_dropout_that_drops_nothing_or_all(p: float) -> None:
    block = sequence(linear, lambda: nn.Dropout(p), nn.Tanh, linear)
    assert_same(Stack(block), plan(["blocks.1.1#0"], [], ["blocks.1.1#0"]), summed)


def test_dropouts_and_attention_while_evaluating(products: list[Product]) -> None:
    units = ["blocks.1.dropout#0", ATTENTION]
    assert_same(Stack().eval(), plan(units, [], units), summed)
    assert_same(Stack(sequence(linear, lambda: nn.Dropout(0.5), nn.Tanh)).eval(), plan([], [], []), summed)
    assert products


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(products: list[Product], dtype: torch.dtype) -> None:
    units = ["blocks.1.dropout#0", ATTENTION]

    def run(model: nn.Module) -> Tensor:
        loss: Tensor = model(batch(4, WIDTH).to(dtype)).square().sum()
        return loss

    assert_same(Stack().to(dtype), plan(units, [], units), run)
    assert products


def test_autocast(products: list[Product]) -> None:
    def run(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss: Tensor = model(batch(4, WIDTH)).float().square().sum()
        return loss

    units = ["blocks.1.dropout#0", "blocks.1.dropout#1", ATTENTION]
    assert_same(Stack(), plan(units, [], units), run)
    assert products


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_dropouts_of_whole_features(products: list[Product], dims: int) -> None:
    convolution, dropout = (getattr(nn, f"{name}{dims}d") for name in ("Conv", "Dropout"))
    shape = (2, 4, *[3] * dims)

    def block() -> nn.Module:
        return nn.Sequential(convolution(4, 4, 1), dropout(0.4), nn.Tanh(), convolution(4, 4, 1))

    def run(model: nn.Module) -> Tensor:
        loss: Tensor = model(batch(*shape)).square().sum()
        return loss

    torch.manual_seed(0)
    model = nn.Sequential(block(), block(), block())
    assert_same(model, plan(["1.1#0"], [], ["1.1#0"], ("1#0",)), run)
    assert len(products) == 2


def test_a_parameter_with_noise(products: list[Product]) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            weight = nn.functional.dropout(self.inner.weight, 0.3)
            return nn.functional.linear(x.sin(), weight, self.inner.bias).tanh()

    units = ["blocks.1#0/dropout#0"]
    assert_same(Stack(Noisy), plan(units, [], units), summed)
    assert len(products) == 2


def test_a_result_that_is_changed_in_place_later(products: list[Product]) -> None:
    block = sequence(linear, lambda: nn.Dropout(0.5), lambda: nn.ReLU(inplace=True), linear)
    assert_same(Stack(block), plan(["blocks.1.1#0"], [], ["blocks.1.1#0"]), summed)
    assert len(products) == 2


def test_a_dropout_in_place_is_refused() -> None:
    model = Stack(sequence(linear, lambda: nn.Dropout(0.5, inplace=True), linear))
    install(model, plan(["blocks.1.1#0"], [], ["blocks.1.1#0"]))
    with pytest.raises(NotApplicable, match="changes an argument in place"):
        summed(model)


def test_double_backward_and_retained_graphs(products: list[Product]) -> None:
    block = sequence(linear, nn.Softplus, lambda: nn.Dropout(0.4), linear, nn.Tanh)
    assert_same(Stack(block), plan(["blocks.1.2#0"], [], ["blocks.1.2#0"]), penalised)
    assert products


@pytest.mark.filterwarnings("ignore")
def test_what_is_no_product_is_held_and_said(products: list[Product]) -> None:
    units = ["blocks.1.1#0"]
    block = sequence(linear, lambda: nn.AlphaDropout(0.5), nn.Tanh, linear)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(Stack(block), plan(units, [], units), summed)
    model = Stack(block)
    install(model, plan(units, [], units))
    with pytest.warns(UserWarning, match=r"blocks\.1\.1#0 makes nothing by a product .* is memory, not exactness"):
        summed(model)
    assert not products


@pytest.mark.parametrize("unit", ["blocks.1.out#0", "blocks.1#0/add#0", "blocks.1#0/gelu#0"])
def test_other_functions_are_kept_as_they_are(products: list[Product], unit: str) -> None:
    assert_same(Stack(Block), plan([unit], [], [unit]), summed)
    assert not products


def test_products_of_two_tensors_with_gradients_are_held(products: list[Product]) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return torch.mul(self.up(x), self.gate(x).sigmoid()).sin()

    assert_same(Stack(Gated), plan(["blocks.1#0/mul#0"], [], ["blocks.1#0/mul#0"]), summed)
    assert not products


def test_remade_units_in_files(tmp_path: Any) -> None:
    made = plan(["h#0"], [], ["h#0"])
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    older = json.loads((tmp_path / "plan.json").read_text())
    assert older["segments"][0].pop("remake") == ["h#0"]
    (tmp_path / "plan.json").write_text(json.dumps(older))
    assert Plan.load(tmp_path / "plan.json") == plan(["h#0"], [], [])
    with pytest.raises(InvalidFile, match="'h#0' is remade in the plan, and neither kept nor skipped"):
        plan([], [], ["h#0"])
