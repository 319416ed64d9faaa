"""Hooks of the user's own, on members and inside them, and hooks of other libraries around and within."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

import autockpt
from autockpt import Plan
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, batch, mlp, summed
from tests.toys.chains import through
from tests.toys.told import Told, with_linear
from tests.twin import counting_replays


def counting(model: nn.Module, name: str) -> Counter[str]:
    """Count every kind of hook on a module, apart in replays."""
    module, seen = model.get_submodule(name), Counter[str]()

    def note(kind: str) -> Any:
        def hook(*_: Any) -> None:
            seen[f"{kind} in a replay" if autockpt.is_recomputing() else kind] += 1

        return hook

    module.register_forward_pre_hook(note("forward pre"))
    module.register_forward_hook(note("forward"))
    module.register_full_backward_pre_hook(note("backward pre"))
    module.register_full_backward_hook(note("backward"))
    module.get_parameter("weight").register_hook(note("gradient"))
    return seen


ONCE = {"forward pre": 1, "forward": 1, "backward pre": 1, "backward": 1, "gradient": 1}


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Tanh()))


def test_hooks_on_a_member_fire_once() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    seen = counting(model, "1")
    autockpt.apply(model, plan=Plan.of([["1", "2"]]))
    summed(model).backward()
    assert seen == ONCE


def test_forward_hooks_inside_a_member_fire_again_and_can_tell_and_backward_hooks_do_not() -> None:
    model = stack()
    seen = counting(model, "1.0")
    autockpt.apply(model, plan=Plan.of(["1"]))
    summed(model).backward()
    assert seen == ONCE | {"forward pre in a replay": 1, "forward in a replay": 1}


def test_a_replay_stops_at_the_last_save_and_does_not_reach_hooks_after_it() -> None:
    model = stack()
    model.get_submodule("1").add_module("3", nn.Linear(WIDTH, WIDTH))
    seen = counting(model, "1.3")  # its input and its weight are saved when it has run
    autockpt.apply(model, plan=Plan.of(["1"]))
    summed(model).backward()
    assert seen == ONCE | {"forward pre in a replay": 1}


def times(factor: float) -> Any:
    """Return a backward hook that scales the gradients it is given first."""
    return lambda module, gradients, *rest: tuple(gradient * factor for gradient in gradients)


def hooked(model: nn.Sequential) -> nn.Sequential:
    """Put hooks on layers that change what goes in, what comes out, and gradients."""
    for index in (1, 2, 4):
        model[index].register_forward_hook(lambda module, args, out: out * 2)
    model[3].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[4].register_full_backward_pre_hook(times(3))
    model[4].register_full_backward_hook(times(2))
    return model


@pytest.mark.parametrize("plan", [[[str(i) for i in range(12)]], ["1", "2", "3", "4"], [["1", "2"], ["3", "4"]]])
def test_hooks_that_change_what_goes_in_and_out_of_members(plan: Any) -> None:
    """The next member takes what the hook returned, not what the member did."""
    assert_same(hooked(mlp()), plan, summed)


def test_hooks_that_change_what_goes_in_and_out_inside_a_member() -> None:
    assert_same(nn.Sequential(hooked(mlp()), nn.Linear(WIDTH, 1)), ["0"], summed)


def test_gradient_hooks_that_forward_registers_fire_once() -> None:
    def watching(own: Told, x: Tensor) -> Any:
        x = own.linear(x).exp()
        if x.requires_grad:
            x.register_hook(lambda gradient: own.seen.append(float(gradient.sum())))
        return x.sin()

    found = []
    for plan in (Plan(), Plan.of([["0", "1"]])):
        torch.manual_seed(0)
        model = nn.Sequential(*(with_linear(watching, seen=[]) for _ in range(2)))
        autockpt.apply(model, plan=plan)
        summed(model).backward()
        found.append([module.seen for module in model if isinstance(module, Told)])
    assert found[0] == found[1]
    assert [len(seen) for seen in found[1]] == [1, 1]


def test_saved_tensor_hooks_inside_a_member_keep_what_is_theirs() -> None:
    def inner(own: Told, x: Tensor) -> Any:
        x = own.linear(x).tanh()
        with save_on_cpu():
            x = x.exp().sin()
        return x.cos()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), with_linear(inner), with_linear(inner))
    assert_same(model, [["0", "1"], "2"], summed)

    def around(module: nn.Module) -> Tensor:
        with save_on_cpu():
            return summed(module)

    assert_same(model, [["0", "1"], "2"], around)


def tangent(own: Told, x: Tensor) -> Any:
    """Differentiates inside its forward with a transform that allows no saved-tensor hooks."""
    return torch.func.vmap(torch.func.grad(lambda row: own.linear(row).sin().sum()))(x)


def test_transforms_inside_a_kept_call_work_and_inside_a_member_raise() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]
    model = nn.Sequential(layers[0], with_linear(tangent), layers[1])
    assert_same(model, ["0", "2"], summed)
    assert_same(model, ["0", "1.linear", "2"], summed)
    with pytest.raises(autockpt.ProfilingError, match=r"torch\.func\.grad.*plan by hand"):
        autockpt.profile(model, torch.randn(4, WIDTH))
    autockpt.apply(model, plan=Plan.of(["1"]))
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        summed(model)


def adapted() -> Told:
    """A frozen base with small trained parts, as adapter libraries make it."""
    torch.manual_seed(0)
    embedding = nn.Embedding(16, WIDTH)
    blocks = [
        nn.ModuleDict({"base": nn.Linear(WIDTH, WIDTH), "down": nn.Linear(WIDTH, 2), "up": nn.Linear(2, WIDTH)})
        for _ in range(3)
    ]
    layers = (Told(adapts, parts=block) for block in blocks)
    parts = {"embedding": embedding, "blocks": nn.ModuleList(blocks), "layers": nn.ModuleList(layers)}
    return Told(lambda own, ids: through(own.layers, own.embedding(ids)), **parts).requires_grad_(False)


def adapts(own: Told, x: Tensor) -> Tensor:
    return torch.tanh(own.parts["base"](x) + own.parts["up"](own.parts["down"](x)))


@pytest.mark.parametrize("inputs", [False, True], ids=["adapters only", "inputs made to require gradients"])
@pytest.mark.parametrize(
    "plan",
    [["layers.0", "layers.2"], [["layers.0", "layers.1", "layers.2"]], [["embedding", "layers.0", "layers.1"]]],
    ids=str,
)
def test_a_frozen_base_with_adapters(plan: Any, inputs: bool) -> None:
    model = adapted()
    if inputs:  # all frozen but a head outside; the gradient comes from a hook on the embedding
        model.embedding.register_forward_hook(lambda module, args, out: out.requires_grad_(True))
    for index in (1, 2) if not inputs else (2,):
        for part in ("down", "up"):
            model.get_submodule(f"blocks.{index}.{part}").requires_grad_(True)
    assert_same(model, plan, lambda module: module(torch.arange(8)).square().sum())


def test_a_layer_that_nothing_below_wants_a_gradient_of_is_not_replayed() -> None:
    model = adapted()
    model.get_submodule("blocks.2.up").requires_grad_(True)
    autockpt.apply(model, plan=Plan.of(["layers.0"]))
    with counting_replays() as replays:
        model(torch.arange(8)).sum().backward()
    assert replays == []


def test_what_a_hook_keeps_is_that_of_forward() -> None:
    """A count, outputs in a list, and an average that it keeps in a tensor."""
    found = []
    for plan in (Plan(), Plan.of(["1"])):
        model, average = stack(), torch.zeros(WIDTH)
        seen: list[Tensor] = []

        def keep(module: nn.Module, args: Any, out: Tensor, seen: Any = seen, average: Tensor = average) -> None:
            seen.append(out.detach().clone())
            with torch.no_grad():
                average.lerp_(out.mean(0), 0.5)

        model.get_submodule("1.0").register_forward_hook(keep)
        autockpt.apply(model, plan=plan)
        for _ in range(3):
            summed(model).backward()
        found.append([*seen, average])
    assert len(found[0]) == len(found[1]) == 4
    assert all(map(torch.equal, found[0], found[1]))


def test_a_hook_that_writes_no_tensor_counts_as_without_a_plan_in_every_step() -> None:
    model, seen = stack(), list[int]()
    model.get_submodule("1.0").register_forward_hook(lambda *_: seen.append(len(seen)))
    autockpt.apply(model, plan=Plan.of(["1"]))
    for _ in range(6):
        summed(model).backward()
    assert seen == [*range(6)]


def test_an_output_that_a_hook_keeps_has_its_gradient() -> None:
    model, kept = stack(), []

    def keep(module: nn.Module, args: Any, out: Tensor) -> None:
        out.retain_grad()
        kept.append(out)

    model.get_submodule("1.0").register_forward_hook(keep)
    autockpt.apply(model, plan=Plan.of(["1"]))
    summed(model).backward()
    assert [out.grad is not None for out in kept] == [True]


def test_hooks_that_forward_puts_on_parameters_and_modules_are_not_put_on_twice() -> None:
    """A replay ends before its forward would take them off again, or takes off those of its forward."""

    def on_weight(own: Told, x: Tensor) -> Any:
        handle = own.linear.weight.register_hook(lambda gradient: gradient * 1.5)
        out = own.linear(x).tanh()
        handle.remove()
        return out

    def once(own: Told, x: Tensor) -> Any:
        if not own.hooked:
            own.linear.register_full_backward_hook(times(2))
            own.hooked.append(True)
        return own.linear(x).tanh()

    for forward, made in ((on_weight, dict[str, Any]), (once, lambda: {"hooked": []})):
        found = []
        for plan in (Plan(), Plan.of(["0", "1"])):
            torch.manual_seed(0)
            model = nn.Sequential(*(with_linear(forward, **made()) for _ in range(3)))
            autockpt.apply(model, plan=plan, check="always")
            run = steps(model, lambda model: model(batch(8, WIDTH).requires_grad_()).sum(), count=3)
            hooks = [len(module._backward_hooks) for module in model.modules()]
            found.append((run, hooks, [len(each._backward_hooks or {}) for each in model.parameters()]))
        assert found[0][0].differences(found[1][0]) == []
        assert found[0][1:] == found[1][1:]
