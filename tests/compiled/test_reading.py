"""Joint graphs as torch traces them, read as one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autockpt
from tests.compiled.models import MODELS, language
from tests.doors import CompileSettings, joint_levels, read_joint_graphs, torch_private, trace_joint_graphs

pytestmark = pytest.mark.filterwarnings(
    # Dynamo reads it of what compiled code is given, in plain models too, and hides the warning where it is no error.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)


def test_graphs_are_one_step_and_linked() -> None:
    torch.compiler.reset()
    model, batch = MODELS["three graphs"]()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    graphs, links = trace_joint_graphs(model, batch)
    assert torch.equal(before, torch.get_rng_state())
    assert all(each.grad is None for each in model.parameters())
    assert len(graphs) == 3
    assert [(later, earlier) for (later, _), earlier in links.items()] == [(1, (0, 0)), (2, (1, 0))]
    step = read_joint_graphs(graphs, links)
    assert len(step.crossing) == 2
    assert [each.graph for each in step.forward] == sorted(each.graph for each in step.forward)
    assert [each.graph for each in step.backward] == sorted((each.graph for each in step.backward), reverse=True)
    assert {"first.qkv", "second.wide", "head"} <= {each.module for each in step.forward}
    draws = [each.name for each in step.forward if each.kept]
    assert [sum(word in name for name in draws) for word in ("dropout", "attention")] == [4, 2]
    assert len(draws) == 6
    gradients = sum(step.storage_bytes[storage] for storage in step.gradients)
    assert gradients - 4 == sum(each.numel() * 4 for each in model.parameters())  # and the one of the loss
    assert joint_levels(step, ())[-1] >= gradients + 4  # what the caller holds at the end: gradients, loss


def test_operators_are_run_alone_only_where_there_is_room() -> None:
    """A plan for inductor, which fuses them, was made above its own budget."""
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16))
    graphs, links = trace_joint_graphs(model, (torch.ones(2048, 16),))
    room, spare = 3 * 2**20, 2**17  # to spare: markers, and what kernels hold for themselves
    part = autockpt.measure(lambda: read_joint_graphs(graphs, links, room_bytes=room)).step_bytes
    whole = autockpt.measure(lambda: read_joint_graphs(graphs, links)).step_bytes
    assert 2**20 < part <= room + spare < whole


@pytest.mark.parametrize("in_place", [False, True])
def test_how_a_module_was_compiled_is_known(in_place: bool) -> None:
    model: Any = language()[0]
    if in_place:
        model.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    else:
        model = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    settings = CompileSettings(model)
    assert (settings.backend, settings.fullgraph, settings.dynamic) == ("aot_eager", True, False)
    assert settings.attribute in vars(model)


def test_what_a_module_was_compiled_to_is_found() -> None:
    model = language()[0]
    assert torch_private.compiled_around(model) is None
    compiled: Any = torch.compile(model, backend="aot_eager")
    assert [torch_private.compiled_around(each) for each in (model, compiled)] == [compiled, compiled]
    model.compile(backend="aot_eager")
    assert torch_private.compiled_around(model) is model


@settings(max_examples=30, deadline=None)
@given(sizes=st.tuples(*[st.integers(1, 300)] * 3), turned=st.booleans(), which=st.sampled_from(["mm", "addmm", "bmm"]))
def test_products_hold_nothing_but_their_result(sizes: tuple[int, int, int], turned: bool, which: str) -> None:
    """They are not run to see what their kernels hold."""
    rows, inner, columns = sizes
    one = torch.ones(inner, rows).T if turned else torch.ones(rows, inner)
    two, bias = torch.ones(inner, columns), torch.ones(1).expand(columns)
    products: dict[str, Callable[[], Tensor]] = {
        "mm": lambda: torch.mm(one, two),
        "addmm": lambda: torch.addmm(bias, one, two),
        "bmm": lambda: torch.bmm(one[None], two[None]),
    }
    assert autockpt.measure(products[which]).step_bytes == 4 * rows * columns
