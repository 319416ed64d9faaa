"""Kept and skipped units inside a segment: the step stays the same, and the units are not run again."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from autockpt import NotApplicable, Plan, ReplayError, Segment, measure
from tests.doors import UnitRun, frames_units, install
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, batch, penalised, summed
from tests.toys.chains import InTurn
from tests.toys.told import Told, around, with_linear


def block() -> nn.Module:
    """A block as transformers have it, whose every function may be a unit."""
    return Told(
        transforms,
        norm=nn.LayerNorm(WIDTH),
        other_norm=nn.LayerNorm(WIDTH),
        qkv=nn.Linear(WIDTH, 3 * WIDTH),
        out=nn.Linear(WIDTH, WIDTH),
        mlp=nn.ModuleDict({"up": nn.Linear(WIDTH, 4 * WIDTH), "down": nn.Linear(4 * WIDTH, WIDTH)}),
        dropout=nn.Dropout(0.2),
    )


def transforms(own: Told, x: Tensor) -> Any:
    heads = own.qkv(own.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(1, 2, 0, 3)
    query, key, value = heads.unbind()
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
    x = x + own.dropout(own.out(mixed.transpose(0, 1).flatten(1)))
    inner = nn.functional.gelu(own.mlp["up"](own.other_norm(x)))
    return x + own.dropout(own.mlp["down"](inner))


def stack(make: Callable[[], nn.Module] = block, depth: int = 3) -> InTurn:
    torch.manual_seed(0)
    return InTurn((make() for _ in range(depth)), last=nn.Linear(WIDTH, 1))


def plan(calls: list[str], keep: list[str], skip: list[str] | None = None) -> Plan:
    """One segment; units are given without their occurrence where it is the first."""

    def key(unit: str) -> str:
        return "/".join(part if "#" in part else f"{part}#0" for part in unit.split("/"))

    calls, keep, skip = ([key(name) for name in names or []] for names in (calls, keep, skip))
    return Plan(segments=(Segment(calls=tuple(calls), keep=tuple(keep), skip=tuple(skip)),))


@pytest.mark.parametrize(
    ("keep", "skip"),
    [
        (["qkv"], []),
        (["qkv", "mlp.up"], []),
        (["/scaled_dot_product_attention"], []),
        (["/scaled_dot_product_attention", "mlp.up"], ["mlp.down", "dropout#1", "/add#1"]),
        (["qkv", "/scaled_dot_product_attention", "out", "mlp.up"], ["mlp.down", "dropout#1", "/add#1"]),
        (["norm", "/gelu", "dropout#0", "dropout#1"], []),
        (["/add#0"], ["out", "dropout#0"]),
        (["/add#0", "qkv", "mlp.up"], ["out", "dropout#0", "mlp.down", "dropout#1", "/add#1"]),
        (["norm/layer_norm", "qkv/linear"], []),
    ],
    ids=str,
)
@pytest.mark.parametrize("calls", [["blocks.1"], ["blocks.0", "blocks.1", "blocks.2"]], ids=["one call", "run"])
def test_units_of_a_block(calls: list[str], keep: list[str], skip: list[str]) -> None:
    def units(names: list[str], calls: list[str]) -> list[str]:
        return [f"{call}{'' if name[0] == '/' else '.'}{name}" for call in calls for name in names]

    read_later = [name for name in skip if name == "/add#1"]  # by the next call of the run
    skipped = units([name for name in skip if name not in read_later], calls) + units(read_later, calls[-1:])
    assert_same(stack(), plan(calls, units(keep, calls) + units(read_later, calls[:-1]), skipped), summed)


def test_a_unit_is_not_run_again() -> None:
    def counts(own: Told, x: Tensor) -> Any:
        own.runs[0] += 1
        return own.linear(x).tanh()

    def block() -> nn.Module:
        counting = [with_linear(counts, runs=[0]) for _ in range(3)]
        return nn.Sequential(counting[0], nn.Tanh(), counting[1], nn.Tanh(), counting[2])

    model = stack(block, depth=1)
    install(model, plan(["blocks.0"], ["blocks.0.0"], ["blocks.0.4"]))
    summed(model).backward()
    assert [layer.runs[0] for layer in model.blocks[0].children() if isinstance(layer, Told)] == [1, 2, 1]


def test_what_stays_is_what_is_kept() -> None:
    """After forward: the segment's input, the kept layer's result, and nothing that a replay brings back."""
    rows = 1 << 12

    def block() -> nn.Module:
        return nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Tanh(), nn.Sigmoid())

    def after_forward(keep: list[str]) -> int:
        model = stack(block, depth=1)
        install(model, plan(["blocks.0"], keep))
        x = torch.ones(rows, WIDTH)
        kept: list[Tensor] = []
        measured = measure(lambda: kept.append(model(x).sum()))
        return (measured.end_bytes - measured.start_bytes) // (rows * WIDTH * 4)

    # The head saves the block's result in any case; a sigmoid and a tanh save their own results.
    assert [after_forward(keep) for keep in ([], ["blocks.0.1"], ["blocks.0.1", "blocks.0.3"])] == [1, 2, 3]


def test_functions_are_counted_in_their_own_calls_code_only() -> None:
    def outer(own: Told, x: Tensor) -> Any:
        x = own.children_[0](x) * (1 / x.shape[0])
        return own.children_[1](x).exp() * x.tanh()

    def of_two() -> nn.Module:
        inner = (with_linear(lambda own, x: own.linear(x) * 2 * 0.3) for _ in range(2))
        return Told(outer, children_=nn.ModuleList(inner))

    units = ["blocks.0/mul#0", "blocks.0/mul#1", "blocks.0.children_.1/mul#1"]
    model = stack(of_two)
    assert_same(model, plan(["blocks.0"], units), summed)
    seen: list[str] = []
    hand_out = UnitRun.hand_out

    def noting(self: UnitRun, arguments: list[Tensor]) -> Any:
        seen.append(self.key)
        return hand_out(self, arguments)

    install(model, plan(["blocks.0"], units))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitRun, "hand_out", noting)
        summed(model).backward()
    # The last product is the last thing that backward needs, so nothing after its arguments is made.
    assert seen == ["blocks.0#0/mul#0", "blocks.0.children_.1#0/mul#1"]


class Doubled(nn.Linear):
    """Computes more than the product."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def replaced() -> nn.Module:
    """A layer whose own forward stands on the instance."""

    def of_sine(layer: nn.Linear, input: Tensor) -> Tensor:
        return nn.functional.linear(input.sin(), layer.weight)

    layer = nn.Linear(WIDTH, WIDTH)
    layer.forward = types.MethodType(of_sine, layer)  # type: ignore[method-assign]
    return layer


LINEAR: list[tuple[Callable[[], nn.Module], bool]] = [
    (lambda: nn.Linear(WIDTH, WIDTH), False),
    (lambda: Doubled(WIDTH, WIDTH), True),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), True),
    (replaced, True),
]


@pytest.mark.parametrize(("make", "by_mode"), LINEAR, ids=["plain", "subclass", "parametrized", "replaced"])
@pytest.mark.parametrize("by_name", [False, True])
def test_the_product_of_a_linear_layer_is_a_unit(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module], by_mode: bool, by_name: bool
) -> None:
    """Where the product is all of the layer's code, no function mode is on to see it."""

    def calls(layer: nn.Module, x: Tensor) -> Any:
        return (layer(input=x.tanh()) if by_name else layer(x.tanh())).tanh()

    modes = []
    own = frames_units.FunctionWatch.__init__

    def noting(*args: Any) -> None:
        modes.append(args)
        own(*args)

    monkeypatch.setattr(frames_units.FunctionWatch, "__init__", noting)
    assert_same(stack(lambda: around(make(), calls), depth=1), plan(["blocks.0"], ["blocks.0.inner/linear"]), summed)
    assert bool(modes) == (by_mode or by_name)


def test_one_of_several_calls_of_a_module_is_a_unit() -> None:
    def twice(layer: nn.Module, x: Tensor) -> Any:
        x = layer(x).sin()
        return layer(x).exp() + layer(x + 1).exp()

    def block() -> nn.Module:
        return around(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh()), twice)

    for number in range(6):
        units = [f"blocks.1.inner#{number}"] if number < 3 else [f"blocks.1.inner.0#{n}" for n in range(number - 2)]
        assert_same(stack(block, depth=2), plan(["blocks.1"], []), summed)
        shared = stack(block, depth=1)
        shared.blocks.append(shared.blocks[0])  # its calls 3 to 5 are those of the second block
        assert_same(shared, plan(["blocks.0#1"], [unit.replace("blocks.1", "blocks.0") for unit in units]), summed)


def test_units_that_return_containers_and_nothing() -> None:
    def attends(own: Told, x: Tensor) -> Any:
        x, state = own.gru(x.exp())
        y, weights = own.attention(x.sin(), x.cos(), x.exp())
        again, nothing = own.attention(x, x, x, need_weights=False)
        assert nothing is None
        return y.exp() + state.sin().sum() + weights.sin().mean() + again.exp()

    def block() -> nn.Module:
        gru = nn.GRU(WIDTH, WIDTH, dropout=0.3, num_layers=2)
        return Told(attends, gru=gru, attention=nn.MultiheadAttention(WIDTH, 2, dropout=0.2))

    units = ["blocks.0.gru", "blocks.0.attention"]
    for keep in ([units[0]], [units[1]], units, [*units, "blocks.0.attention#1"]):
        assert_same(stack(block, depth=2), plan(["blocks.0"], keep), summed)


def test_a_unit_that_returns_its_argument() -> None:
    def block() -> nn.Module:
        return nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0), nn.Identity(), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
        )

    model = stack(block).eval()
    assert_same(model, plan(["blocks.0"], ["blocks.0.1", "blocks.0.2"]), summed)


@pytest.mark.parametrize("view", ["conj", "resolve_conj", "imag"])
def test_a_unit_that_is_given_a_conjugate_and_saves_another_view_of_it(view: str) -> None:
    """What it saved was taken for a view of its argument, and was handed back with the wrong sign."""

    def weighs(own: Told, y: Tensor) -> Any:
        return ((y.imag if view == "imag" else getattr(y, view)()) * own.weight).abs()

    def turns(own: Told, x: Tensor) -> Any:
        z = torch.view_as_complex(own.inner(x).unflatten(-1, (WIDTH // 2, 2)))
        return own.outer(own.weighs(z.conj())).tanh()

    def block() -> nn.Module:
        inner, outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH // 2, WIDTH)
        weight = torch.randn(WIDTH // 2, dtype=torch.float32 if view == "imag" else torch.complex64)
        return Told(turns, inner=inner, outer=outer, weighs=Told(weighs, weight=nn.Parameter(weight)))

    assert_same(stack(block), plan(["blocks.1"], ["blocks.1.weighs"]), summed)


@pytest.mark.parametrize("begin", [0, 2])
def test_a_unit_that_saves_a_part_of_its_argument(begin: int) -> None:
    """A replay, which has the whole argument, hands back that part."""
    half = WIDTH // 2

    def block() -> nn.Module:
        part = Told(
            lambda own, y: y[:, begin : begin + half] @ own.weight, weight=nn.Parameter(torch.randn(half, WIDTH))
        )
        return Told(lambda own, x: own.part(own.linear(x).exp()).tanh(), linear=nn.Linear(WIDTH, WIDTH), part=part)

    assert_same(stack(block), plan(["blocks.1"], ["blocks.1.part"]), summed)


def test_an_exception_that_the_member_catches_in_a_unit() -> None:
    def fails(own: Told, x: Tensor) -> Tensor:
        x.exp()
        raise ValueError

    def tries(own: Told, x: Tensor) -> Tensor:
        try:
            x = own.failing(x)
        except ValueError:
            x = own.linear(x).sin()
        return x.exp()

    def block() -> nn.Module:
        return with_linear(tries, failing=Told(fails))

    assert_same(stack(block), plan(["blocks.0"], ["blocks.0.failing", "blocks.0.linear"]), summed)


def test_double_backward_and_retained_graphs() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softplus(), nn.Linear(WIDTH, WIDTH), nn.Tanh())

    for keep, skip in ((["0"], []), (["2", "1"], []), (["1/softplus"], []), (["0", "1"], ["2", "3"])):
        units = [[f"blocks.1.{name}" for name in names] for names in (keep, skip)]
        assert_same(stack(block), plan(["blocks.1"], *units), penalised)


def test_autocast_and_a_kept_cast() -> None:
    def run(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss: Tensor = model(batch(4, WIDTH)).float().square().sum()
        return loss

    assert_same(stack(), plan(["blocks.1"], ["blocks.1.qkv", "blocks.1.mlp.up", "blocks.1/gelu"]), run)


def test_a_comparison_is_a_unit_as_others_are() -> None:
    def masked(own: Told, x: Tensor) -> Tensor:
        return torch.where(x == x.abs(), own.linear(x), 0.1).sin()

    assert_same(stack(lambda: with_linear(masked)), plan(["blocks.1"], ["blocks.1/__eq__"]), summed)


def test_a_batch_norm_that_is_kept_counts_once() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    for keep in (["1"], ["0", "1"], ["0"]):
        assert_same(stack(block), plan(["blocks.1"], [f"blocks.1.{name}" for name in keep]), summed)


def test_skipping_what_is_needed_is_said() -> None:
    model = stack()
    install(model, plan(["blocks.1"], [], ["blocks.1.qkv"]))
    with pytest.raises((ReplayError, RuntimeError), match="blocks") as raised:
        summed(model).backward()
    assert "blocks.1.qkv#0" in str(raised.value) + str(getattr(raised.value, "__notes__", ""))


def test_what_looks_only_at_the_shape_of_a_skipped_result_is_as_it_would_be() -> None:
    def shapes(own: Told, x: Tensor) -> Any:
        y = own.first(x)
        ones = torch.ones_like(y) + torch.arange(y.shape[1], device=y.device) + y.new_zeros(y.shape).t().t()
        z = own.second(ones * x).sin()
        return z * z.cos() + y.view(2, -1).view_as(x)

    def block() -> nn.Module:
        return Told(shapes, first=nn.Linear(WIDTH, WIDTH), second=nn.Linear(WIDTH, WIDTH))

    assert_same(stack(block), plan(["blocks.1"], [], ["blocks.1.first", "blocks.1/add#2"]), summed)
    model = stack(block)
    install(model, plan(["blocks.1"], [], ["blocks.1.second"]))
    with pytest.raises(ReplayError, match=r"aten\.sin.* The plan skips blocks\.1\.second#0"):
        summed(model).backward()


def writing_block() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Flatten(0), nn.Unflatten(0, (-1, WIDTH)), nn.Tanh()
    )


def test_a_unit_that_writes_its_argument_is_refused() -> None:
    model = stack(writing_block)
    install(model, plan(["blocks.0"], ["blocks.0.1"]))
    with pytest.raises(NotApplicable, match="changes an argument in place"):
        summed(model)


@pytest.mark.parametrize("keep", [["2"], ["3"], ["2", "3"]], ids=str)
def test_a_unit_that_returns_a_view_of_its_argument(keep: list[str]) -> None:
    """It was refused, and with it batches of one, which make views of what is copied else."""
    assert_same(stack(writing_block), plan(["blocks.0"], [f"blocks.0.{unit}" for unit in keep]), summed)


def test_a_result_that_is_changed_in_place_later_is_not_handed_out() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))

    model = stack(block)
    install(model, plan(["blocks.0"], ["blocks.0.0"]))
    with pytest.raises(RuntimeError, match=r"result of a kept call .* is at version 1"):
        summed(model).backward()
    assert_same(stack(lambda: nn.Sequential(block(), nn.Tanh())), plan(["blocks.0"], ["blocks.0.0"]), summed)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (["blocks.1"], "not inside the segment"),
        (["blocks.0.nothing"], "has no 'blocks.0.nothing'"),
        (["blocks.1/add"], "not inside the segment"),
    ],
)
def test_units_that_are_not_inside_their_segment_are_refused(keep: list[str], message: str) -> None:
    units = tuple(f"{unit.replace('/', '#0/')}#0" for unit in keep)
    with pytest.raises(NotApplicable, match=message):
        install(stack(), Plan(segments=(Segment(calls=("blocks.0#0",), keep=units),)))


def looks(own: Told, x: Tensor) -> Tensor:
    """Notes how many dispatch modes are on, in forward and in backward."""
    own.seen.append(("forward", len(_get_current_dispatch_mode_stack())))
    out = x * 2
    out.register_hook(lambda gradient: own.seen.append(("backward", len(_get_current_dispatch_mode_stack()))))
    return out


def test_no_dispatch_mode_is_on_in_a_selective_step() -> None:
    looking = Told(looks, seen=[])
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), looking, nn.GELU(), nn.Linear(WIDTH, WIDTH))
    model = nn.Sequential(block, nn.Linear(WIDTH, 1))
    install(model, plan(["0"], ["0.0", "0.2/gelu"]))
    model(batch(4, WIDTH)).sum().backward()
    assert looking.seen == [("forward", 0), ("forward", 0), ("backward", 0)]
