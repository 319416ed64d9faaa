"""The corners of autograd: every one of these works on a planned model as on a plain one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from autockpt import Plan, Segment, is_recomputing
from tests.doors import install
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, Tower, batch, mlp, summed
from tests.toys.told import Told, around, with_linear
from tests.twin import counting_replays

RUNS = [["0", "1", "2", "3"], ["4", "5", "6"]]


def pair(model: nn.Module, plan: Any = RUNS) -> tuple[nn.Module, nn.Module]:
    planned = copy.deepcopy(model)
    install(planned, Plan.of(plan))
    return model, planned


def smooth() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Softplus())))


def test_double_backward() -> None:
    def penalty(model: nn.Module) -> Tensor:
        x = batch(4, WIDTH).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return gradient.square().sum()

    assert_same(smooth(), RUNS, penalty)


def test_retained_graph_and_a_second_backward() -> None:
    plain, planned = pair(smooth())
    for model in (plain, planned):
        loss = summed(model)
        loss.backward(retain_graph=True)
        loss.backward()
    for one, other in zip(plain.parameters(), planned.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_partial_backward_then_the_rest() -> None:
    plain, planned = pair(smooth())
    found = []
    for model in (plain, planned):
        loss = summed(model)
        some = torch.autograd.grad(loss, [model.get_parameter("4.weight")], retain_graph=True)
        found.append([*some, *torch.autograd.grad(loss, list(model.parameters()))])
    assert all(map(torch.equal, *found))


def test_gradients_taken_inside_the_model() -> None:
    def energy_of(own: Told, x: Tensor) -> Any:
        """Returns forces: a gradient taken in the middle of forward, through members that have just run."""
        x = x.detach().requires_grad_()
        (inner,) = torch.autograd.grad(own.second(own.first(x).sin()).sum(), x, create_graph=True)
        return inner + own.force(own.first(x), x)

    def force(own: Told, hidden: Tensor, x: Tensor) -> Tensor:
        (inner,) = torch.autograd.grad(hidden.sin().exp().sum(), x, create_graph=True)
        return inner.exp()

    torch.manual_seed(0)
    second = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, 1))
    model = Told(energy_of, first=nn.Linear(WIDTH, WIDTH), second=second, force=Told(force))
    assert_same(model, [["first", "second"], ["first#1", "force"]], summed)


def test_a_custom_function_that_reads_its_saved_tensors_twice_and_saves_its_output() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            out = x.exp()
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            x, out = ctx.saved_tensors
            again, _ = ctx.saved_tensors
            total: Tensor = gradient * out + 0 * (x - again)
            return total

    torch.manual_seed(0)
    layers = (Told(lambda own, x: Twice.apply(x.tanh())) for _ in range(2))  # type: ignore[no-untyped-call]
    assert_same(nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers, nn.Linear(WIDTH, 1)), [["1", "2"]], summed)


def test_save_on_cpu_around_the_model_takes_the_boundary() -> None:
    def run(model: nn.Module) -> Tensor:
        with save_on_cpu():
            return summed(model)

    assert_same(mlp(), RUNS, run)


@pytest.mark.parametrize("keep", [(), ("block.0#0",), ("block.1#0",)], ids=["whole", "linear", "softplus"])
@pytest.mark.parametrize(
    "view",
    [Tensor.t, lambda x: x[1:], lambda x: x[:, 1:2].expand(WIDTH, WIDTH), lambda x: x[:, ::2].repeat(1, 2)],
    ids=["transposed", "offset", "expanded", "plain"],
)
def test_hooks_that_bring_the_boundary_back_in_another_layout(
    view: Callable[[Tensor], Tensor], keep: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softplus(), nn.Linear(WIDTH, WIDTH))
    plain, x = with_linear(lambda own, x: own.block(view(own.linear(x))), block=block), batch(WIDTH, WIDTH)
    planned = copy.deepcopy(plain)
    install(planned, Plan(segments=(Segment(calls=("block#0",), keep=keep),)))
    for model in (plain, planned):
        with saved_tensors_hooks(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), lambda t: t):
            loss = model(x).square().sum()
        loss.backward()
    for one, other in zip(plain.parameters(), planned.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_hooks_around_the_model_see_the_boundary_and_no_more_of_a_segment() -> None:
    _, planned = pair(smooth(), [[str(i) for i in range(8)]])
    packed: list[Tensor] = []
    x = batch(4, WIDTH)

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = planned(x)
    assert [tensor.data_ptr() for tensor in packed] == [x.data_ptr()]
    out.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_function_transforms_run_plain() -> None:
    model, planned = pair(smooth())
    parameters = dict(model.named_parameters())

    def loss(module: nn.Module) -> Any:
        def of(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(module, parameters, (x,)).square().sum()
            return out

        return of

    x = batch(4, WIDTH)
    transforms: list[Callable[[Any], Any]] = [
        lambda f: torch.func.grad(f)(parameters, x),
        lambda f: torch.func.vmap(torch.func.grad(f), (None, 0))(parameters, x),
        lambda f: torch.func.jacrev(f)(parameters, x),
    ]
    with counting_replays() as replays:
        for transform in transforms:
            expected, found = transform(loss(model)), transform(loss(planned))
            assert all(torch.equal(expected[name], found[name]) for name in expected)
        rows = torch.func.vmap(planned)(x)
        tangents = torch.func.jvp(planned, (x,), (torch.ones_like(x),))
    assert torch.allclose(rows, model(x))
    assert torch.equal(tangents[1], torch.func.jvp(model, (x,), (torch.ones_like(x),))[1])
    assert replays == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_forward_mode_runs_plain() -> None:
    model, planned = pair(smooth())
    found = []
    for module in (model, planned):
        with torch.autograd.forward_ad.dual_level():
            x = torch.autograd.forward_ad.make_dual(batch(4, WIDTH), torch.ones(4, WIDTH))
            found.append(torch.autograd.forward_ad.unpack_dual(module(x)).tangent)
    assert torch.equal(*found)


def test_functional_call_gives_gradients_of_the_parameters_it_was_given() -> None:
    plain, planned = pair(smooth())
    found = []
    for model in (plain, planned):
        parameters = {name: (2 * p).detach().requires_grad_() for name, p in model.named_parameters()}
        scaled = {name: p * 3 for name, p in parameters.items()}
        loss = torch.func.functional_call(model, scaled, (batch(4, WIDTH),)).square().sum()
        found.append(torch.autograd.grad(loss, list(parameters.values())))
    assert all(map(torch.equal, *found))


def test_parameters_swapped_between_forward_and_backward() -> None:
    def run(model: nn.Module) -> Tensor:
        loss = summed(model)
        for layer in model.children():
            for name, parameter in list(layer.named_parameters()):
                setattr(layer, name, nn.Parameter(torch.zeros_like(parameter)))
        return loss

    plain, planned = pair(smooth())
    originals = [list(model.parameters()) for model in (plain, planned)]
    for model in (plain, planned):
        run(model).backward()
    for one, other in zip(*originals, strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)
    assert all(not parameter.any() for parameter in planned.parameters())


def test_a_weight_changed_before_backward_raises_as_in_a_plain_step() -> None:
    for model in pair(smooth()):
        loss = summed(model)
        with torch.no_grad():
            model.get_parameter("2.weight").mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_saved_tensor_changed_inside_its_member_raises_as_in_a_plain_step() -> None:
    def wrong(own: Told, x: Tensor) -> Tensor:
        y = x.exp()
        z = y.sin()
        y.add_(1)
        return z.exp() + y

    for model in pair(nn.Sequential(nn.Linear(WIDTH, WIDTH), Told(wrong)), ["1"]):
        with pytest.raises(RuntimeError, match="inplace operation"):
            summed(model).backward()


def test_without_gradients_nothing_is_recorded() -> None:
    _, planned = pair(smooth())
    with torch.no_grad():
        assert not planned(batch(4, WIDTH)).requires_grad
    with torch.inference_mode():
        assert planned(batch(4, WIDTH)).is_inference()


def inner() -> nn.Module:
    """Uses torch's own checkpoint inside."""
    return with_linear(
        lambda own, x: checkpoint(own.second, own.linear(x).tanh(), use_reentrant=False).sin(),
        second=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)),
    )


def test_torch_checkpoint_inside_a_member() -> None:
    torch.manual_seed(0)
    assert_same(nn.Sequential(inner(), inner(), nn.Linear(WIDTH, 1)), [["0", "1"]], summed)


@pytest.mark.parametrize("reentrant", [False, True])
def test_members_inside_torch_checkpoint_run_plain(reentrant: bool) -> None:
    plan = [["inner.0", "inner.1", "inner.2", "inner.3"]]
    outer = around(mlp(), lambda inner, x: checkpoint(inner, x.requires_grad_(), use_reentrant=reentrant))
    assert_same(outer, plan, lambda model: summed(model), replays=False)

    def checkpointed(model: nn.Module) -> Tensor:
        out: Tensor = checkpoint(model, batch(4, WIDTH).requires_grad_(), use_reentrant=reentrant).square().sum()
        return out

    # A re-entrant checkpoint runs the whole forward in backward, in a call of the root like any other.
    assert_same(mlp(), RUNS, checkpointed, replays=reentrant)


def test_inside_a_replay_the_code_can_tell() -> None:
    def counting(own: Told, x: Tensor) -> Tensor:
        own.seen.append(is_recomputing())
        return x.exp()

    noting = Told(counting, seen=[])
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), noting, nn.Tanh())
    install(model, Plan.of([["1", "2"]]))
    summed(model).backward()
    assert noting.seen == [False, True]
    assert not is_recomputing()


def test_multiple_outputs_of_which_only_one_is_used() -> None:
    split = Told(lambda own, x: (x.exp(), x.sin().exp(), x.cos()))
    model = with_linear(lambda own, x: own.tower(own.split(own.linear(x))[1]), split=split, tower=Tower(2))
    assert_same(model, ["split", "tower"], summed)


@pytest.mark.parametrize("which", ["all", "inner"])
@pytest.mark.parametrize("plan", [["0", "1"], [["0", "1", "2"]]], ids=str)
def test_hooks_around_the_model_that_round_what_waits(plan: Any, which: str) -> None:
    """A replay starts from what forward had, and backward reads what it makes as the hooks bring it back."""

    def pack(tensor: Tensor) -> Tensor:
        return tensor.bfloat16() if which == "all" or tensor.shape[-1] == 4 * WIDTH else tensor

    def rounded(model: nn.Module) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.float()):
            return summed(model)

    torch.manual_seed(0)
    blocks = (
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh()) for _ in range(3)
    )
    assert_same(nn.Sequential(*blocks), plan, rounded)
