"""Under torch.compile a member is recomputed by torch's own checkpoint, which the compiler knows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, Segment
from tests.doors import install
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, batch, summed
from tests.twin import counting_replays

# Dynamo reads it of what compiled code is given, in plain models too, and hides the warning where it is no error.
dynamo_reads_grad = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))


def same_gradients(one: nn.Module, other: nn.Module) -> bool:
    return all(
        a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def test_a_whole_model_is_one_graph_with_a_region_a_member() -> None:
    plain = layers()
    model = copy.deepcopy(plain)
    install(model, Plan.of([["0", "1"], "3"]))
    regions: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        regions.append(sum("checkpoint" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    with counting_replays() as replays:
        compiled(batch(4, WIDTH)).square().sum().backward()
    summed(plain).backward()
    assert regions == [3]
    assert replays == []
    assert same_gradients(plain, model)


class Own(nn.Module):
    """Of its own class: before torch 2.15, compile() leaves the modules of torch.nn as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


def own_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(Own(), Own()) for _ in range(4)))


def compiled_inside(model: nn.Module, backend: Any = "aot_eager") -> None:
    """Compile the layers of the members, in the copy that runs: a copied module forgets that it was compiled."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Tanh, Own)):
            module.compile(backend=backend)


@dynamo_reads_grad
@pytest.mark.parametrize("model", [layers, own_layers])
def test_compiled_modules_inside_members(model: Callable[[], nn.Module]) -> None:
    def run(model: nn.Module) -> Tensor:
        compiled_inside(model)
        return summed(model)

    torch.compiler.reset()  # what was compiled of the same code before counts against a limit
    assert_same(model(), [["0", "1"], "3"], run)


@dynamo_reads_grad
@pytest.mark.parametrize("model", [layers, own_layers])
def test_compiled_modules_inside_members_with_batches_of_several_sizes(model: Callable[[], nn.Module]) -> None:
    """A replay may run what was compiled for any size, where its forward ran what was compiled for one."""

    def run(model: nn.Module) -> Tensor:
        compiled_inside(model)
        losses = [model(batch(size, WIDTH)).square().sum() for size in (4, 6, 9, 4)]
        return torch.stack(losses).sum()

    torch.compiler.reset()
    assert_same(model(), [["0", "1"], "3"], run)


@dynamo_reads_grad
def test_a_replay_compiles_nothing_anew() -> None:
    torch.compiler.reset()
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    model = own_layers()
    install(model, Plan.of([["0", "1"], "3"]))
    compiled_inside(model, backend)
    loss = summed(model)
    compiled = len(graphs)
    assert compiled
    with counting_replays() as replays:
        loss.backward()
    assert (len(replays), len(graphs)) == (2, compiled)


@dynamo_reads_grad
def test_compiled_modules_inside_members_under_autocast() -> None:
    """There a replay compiles once more, since it fills no cache of casts."""

    def run(model: nn.Module) -> Tensor:
        compiled_inside(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return summed(model)

    torch.compiler.reset()
    assert_same(own_layers(), [["0", "1"], "3"], run)


@dynamo_reads_grad
def test_compiled_members_inside_an_uncompiled_model() -> None:
    plain = layers()
    model = copy.deepcopy(plain)
    install(model, Plan.of([["0", "1"], "3"]))
    for layer in model:
        layer.compile(backend="eager")
    loss: Tensor = summed(model)
    for each in (loss, summed(plain)):
        each.backward()
    assert same_gradients(plain, model)


class Glued(nn.Module):
    """Two layers, with a function of its own before each that the layers' code calls too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*layers()][:2])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(torch.tanh(x))
        return x


@dynamo_reads_grad
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_calls_between_glue(backend: str) -> None:
    def run(model: nn.Module) -> Tensor:
        for layer in model.layers:  # type: ignore[union-attr]
            layer.compile(backend=backend)
        return summed(model)

    assert_same(Glued(), Plan(segments=(Segment(calls=("#0/tanh#1",)),)), run, replays=False)  # it is kept
    assert_same(Glued(), Plan(segments=(Segment(calls=("layers.0#0", "#0/tanh#1", "layers.1#0")),)), run, replays=None)


def test_glue_of_a_compiled_model_is_kept() -> None:
    torch.compiler.reset()  # else what was compiled of the same code before counts against a limit
    plain = Glued()
    model = copy.deepcopy(plain)
    install(model, Plan(segments=(Segment(calls=("#0/tanh#1", "layers.1#0")),)))
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    for each in (compiled, plain):
        summed(each).backward()
    assert same_gradients(plain, model)


class Broken(nn.Module):
    """Its graph breaks in the middle of the root's own forward, as at a logger's warning."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Own() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[:2]:
            x = block(x)
        torch._dynamo.graph_break()
        for block in self.blocks[2:]:
            x = block(x)
        return x


def in_place(model: nn.Module, backend: Any) -> nn.Module:
    model.compile(backend=backend)
    return model


def around(model: nn.Module, backend: Any) -> Any:
    return torch.compile(model, backend=backend)


@dynamo_reads_grad
@pytest.mark.parametrize(
    ("compiled", "inputs"), [(in_place, batch(64, WIDTH)), (around, batch(64, WIDTH)), (around, None)]
)
def test_a_governed_model_is_compiled_as_the_plain_one_is(compiled: Callable[..., Any], inputs: Tensor | None) -> None:
    """It ended in RecursionError where the root's graph breaks, and was cut off at our own forward."""
    found = []
    for budget in (None, "lowest"):
        torch.compiler.reset()
        graphs: list[int] = []

        def backend(graph: torch.fx.GraphModule, inputs: Any, graphs: list[int] = graphs) -> Any:
            graphs.append(len(graph.graph.nodes))
            return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

        torch.manual_seed(0)
        model = Broken()
        if budget is not None:
            autockpt.apply(model, budget, inputs=inputs)
        call = compiled(model, backend)
        for _ in range(3):
            call(batch(64, WIDTH)).square().sum().backward()
        found.append((model, len(graphs)))
        if budget is not None:
            assert (autockpt.plan_of(model) is not None) == (inputs is not None)
    (plain, once), (governed, counted) = found
    assert once == counted == 2
    assert same_gradients(plain, governed)
