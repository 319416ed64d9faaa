"""Plans of compiled code: shown, saved, applied without solving, and kept apart in torch's caches."""

from __future__ import annotations

import copy
import logging
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.utils import counters

import autockpt
from autockpt import CompiledPlan, Infeasible, InvalidFile, NotApplicable
from tests.compiled.models import BATCH, LENGTH, MODELS, ROWS, WIDTH, Attention, Narrow, outside
from tests.compiled.steps import static_bytes, trained
from tests.doors import (
    JointFused,
    Lowered,
    Partition,
    compiled_hold_of,
    compiled_holding,
    fused_joint_step,
    joint_levels,
    plan_by_code,
    prepare_joint_graphs,
    trace_joint_graphs,
)
from tests.doors import JointGraph as PlannedGraph

pytestmark = pytest.mark.filterwarnings(
    # Dynamo reads it of what compiled code is given, in plain models too, and hides the warning where it is no error.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)


def test_a_plan_is_shown_saved_and_applied_without_solving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Narrow()
    compiled = autockpt.apply(outside(model), "min", inputs=BATCH, seconds=1.0)
    plan = autockpt.plan_of(compiled)
    assert isinstance(plan, CompiledPlan) and plan.model == "Narrow" and any(each.again for each in plan.graphs)
    sizes, left = trained(compiled, BATCH)
    assert sizes[-1] == plan.peak_bytes - static_bytes(model, BATCH)
    page = plan.explain()
    assert "Plan for the compiled code of Narrow" in page and "inner … outer" in page
    report = autockpt.report(compiled)
    assert report.plan is plan and report.steps == 3 and report.plans[0].reason == "this kind of batch came first"
    assert "operators inside compiled code" in str(report)
    verified = autockpt.verify(compiled, BATCH)
    assert verified.exact and verified.planned_peak_bytes == plan.peak_bytes
    assert verified.measured_peak_bytes is not None and verified.measured_plain_peak_bytes is not None
    assert verified.measured_peak_bytes <= 1.01 * plan.peak_bytes < verified.measured_plain_peak_bytes

    plan.save(file := tmp_path / "plan.json")
    assert CompiledPlan.load(file) == plan
    with pytest.raises(NotApplicable, match="the model is not compiled as a whole"):
        autockpt.apply(Narrow(), plan=file)
    monkeypatch.setattr(compiled_holding, "make_plan", None)
    torch.compiler.reset()
    again = autockpt.apply(outside(model), plan=file)
    assert trained(again, BATCH)[0] == sizes and autockpt.plan_of(again) == plan
    assert all(torch.equal(one, other) for one, other in zip(trained(again, BATCH)[1], left, strict=True))
    with caplog.at_level(logging.WARNING, "autockpt"):
        again(torch.ones(32, 16)).backward()  # a last batch that is smaller: it runs as it was compiled
    assert "the plan is for other graphs" in caplog.text

    with pytest.raises(NotApplicable, match=r"knows 0 of 1\.\nOnly in this step: inner … outer \(\d+ operators\)"):
        autockpt.apply(outside(Narrow(width=32)), plan=plan, inputs=BATCH)
    with pytest.raises(InvalidFile, match="compiled-plan"):
        autockpt.Plan.load(file)


def test_a_plan_of_compiled_code_is_none_of_calls() -> None:
    with pytest.raises(NotApplicable, match="one of compiled code"):
        autockpt.verify(Narrow(), BATCH, plan=CompiledPlan())
    with pytest.raises(NotApplicable, match="one of compiled code"):
        CompiledPlan().timeline(autockpt.Profile.load("resnet-50"))


def test_copies_and_pickles_of_a_governed_model_run_as_it_was_compiled() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Narrow()
    compiled = outside(model)
    plain, _ = trained(compiled, BATCH)
    autockpt.apply(compiled, "min", inputs=BATCH, seconds=1.0)
    sizes, left = trained(compiled, BATCH)
    assert sizes[-1] < plain[-1]
    for other in (copy.deepcopy(compiled), outside(copy.deepcopy(model)), pickle.loads(pickle.dumps(compiled))):
        assert compiled_hold_of(other) is None
        again, also_left = trained(other, BATCH)
        assert again[-1] >= plain[-1]
        assert all(torch.equal(one, two) for one, two in zip(left, also_left, strict=True))
    assert trained(compiled, BATCH)[0][-1] == sizes[-1]
    assert b"autockpt" not in pickle.dumps(compiled)


def test_with_symbolic_sizes_smaller_batches_take_the_same_graph() -> None:
    """A plan is for the largest seen: a larger one is planned anew, and nothing else compiles."""
    torch.manual_seed(0)
    model = Narrow()
    plain = torch.compile(copy.deepcopy(model), backend="aot_eager", dynamic=True)
    expected = {rows: trained(plain, (torch.ones(rows, 16),), 2) for rows in (8, 4, 6, 12)}
    torch.compiler.reset()
    static = static_bytes(model, (torch.ones(8, 16),))
    compiled: Any = torch.compile(model, backend="aot_eager", dynamic=True)
    autockpt.apply(compiled, "min", seconds=1.0)
    graphs = []
    for rows, (sizes, left) in expected.items():
        measured, own = trained(compiled, (torch.ones(rows, 16),), 2)
        assert measured[-1] <= sizes[-1]
        assert all(torch.equal(one, other) for one, other in zip(own, left, strict=True))
        graphs.append(counters["stats"]["unique_graphs"])
        if rows == 8:
            plan = autockpt.plan_of(compiled)
            assert plan is not None and measured[-1] == plan.peak_bytes - static < sizes[-1]
    assert graphs[0] == graphs[1] == graphs[2] < graphs[3]
    hold = compiled_hold_of(compiled)
    assert hold is not None and len(hold.made) == 2


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_is_compiled_after_apply_is_held_inside_what_was_compiled(
    in_place: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first step ran without a plan, as all others did: nobody sees a forward that is compiled."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Narrow()
    autockpt.apply(model, "min", seconds=1.0)
    compiled: Any = model
    if in_place:
        model.compile(backend="aot_eager")
    else:
        compiled = outside(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        compiled(*BATCH).backward()
        optimizer.step()
        optimizer.zero_grad()
    plan = autockpt.plan_of(compiled)
    assert isinstance(plan, CompiledPlan) and any(each.again for each in plan.graphs)
    assert trained(compiled, BATCH)[0][-1] == plan.peak_bytes - static_bytes(model, BATCH)
    assert "compiled as a whole after apply" in caplog.text
    autockpt.remove(compiled)
    assert autockpt.plan_of(compiled) is None is autockpt.plan_of(model)


def fused_code(prepared: Any, asked: list[CompiledPlan]) -> Callable[[CompiledPlan], Lowered]:
    """Return what reads code in which products alone have memory, and whatever else waits for backward."""
    step = prepared.counted
    keys = [(prepared.names[each.graph], late, each.name) for each in step.forward for late in (False, True)]
    keys += [(prepared.names[each.graph], True, each.name) for each in step.backward if each.place >= 0]
    unheld = frozenset(key for key in keys if "mm" not in key[-1])
    fused = JointFused(unheld=unheld, held=frozenset(keys) - unheld)
    held = fused_joint_step(step, prepared.names, fused)
    index = {(prepared.names[each.graph], each.place): i for i, each in enumerate(step.forward)}

    def read(plan: CompiledPlan) -> Lowered:
        asked.append(plan)
        again = {index[name, place] for name, places in plan.again.items() for place in places}
        size = max(joint_levels(held, again))
        return Lowered(peak_bytes=size, first_bytes=size, fused=fused)

    return read


@pytest.mark.parametrize("name", ["narrow", pytest.param("language", marks=pytest.mark.sweep)])
def test_peaks_and_seconds_of_code_are_monotone_over_twelve_budgets(name: str) -> None:
    """Graphs stand where code does not: budgets that code holds were refused, and lower ones had cheaper plans."""
    torch.compiler.reset()
    model, batch = (Narrow(), BATCH) if name == "narrow" else MODELS[name]()
    prepared, asked = prepare_joint_graphs(*trace_joint_graphs(model, batch), seconds=1.0), list[CompiledPlan]()
    read = fused_code(prepared, asked)
    lowest = plan_by_code(prepared, read, None)
    assert len(asked) <= 4 and any(lowest.again.values())
    plain_bytes = max(joint_levels(prepared.counted, ()))
    seconds, peak_bytes = math.inf, 0
    for budget_bytes in range(lowest.peak_bytes, plain_bytes, max(1, (plain_bytes - lowest.peak_bytes) // 12)):
        asked.clear()
        plan = plan_by_code(prepared, read, budget_bytes)
        assert peak_bytes <= plan.peak_bytes <= budget_bytes and plan.recompute_seconds <= seconds
        seconds, peak_bytes = plan.recompute_seconds, plan.peak_bytes
        assert len(asked) <= 3 or budget_bytes == lowest.peak_bytes
    with pytest.raises(Infeasible) as told:
        plan_by_code(prepared, read, lowest.peak_bytes - 1)
    assert told.value.minimum_bytes == lowest.peak_bytes


class Alike(nn.Module):
    """Blocks with graph breaks between: the graphs of the second and the third look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        torch._dynamo.graph_break()
        x = self.blocks[1](x)
        torch._dynamo.graph_break()
        x = self.blocks[2](x)
        torch._dynamo.graph_break()
        y: Tensor = self.blocks[3](x)
        return y.square().mean()


@pytest.mark.sweep
def test_graphs_that_look_alike_are_cut_as_the_plan_counts() -> None:
    """The cut of the last one stood for all: a step was far from its prediction."""
    torch.manual_seed(0)
    model, batch = Alike(), (torch.randn(ROWS, LENGTH, WIDTH),)
    torch.compiler.reset()
    plain, plain_left = trained(outside(copy.deepcopy(model)), batch)
    torch.compiler.reset()
    static, budget = static_bytes(model, batch), int(0.85 * plain[-1])
    compiled = autockpt.apply(outside(model), static + budget, inputs=batch, seconds=1.0)
    plan = autockpt.plan_of(compiled)
    assert isinstance(plan, CompiledPlan) and len(plan.graphs) == 3
    sizes, left = trained(compiled, batch)
    assert sizes[-1] == plan.peak_bytes - static <= budget
    assert all(torch.equal(one, other) for one, other in zip(left, plain_left, strict=True))


@pytest.mark.parametrize("by", [1.0, *(pytest.param(by, marks=pytest.mark.sweep) for by in (0.6, 0.9, 1.05))])
def test_plans_are_held_to_what_generated_code_is_read_to_hold(by: float) -> None:
    """Whatever share of the prediction that is: three plans at most are tried, and the cheapest within is taken."""
    torch.compiler.reset()
    graphs, links = trace_joint_graphs(*MODELS["language"]())
    prepared = prepare_joint_graphs(graphs, links, static_bytes=1000, seconds=1.0)

    def read(plan: CompiledPlan) -> Lowered:
        held = int(by * (plan.peak_bytes - 1000))
        return Lowered(peak_bytes=held, first_bytes=held)

    plain = by * max(joint_levels(prepared.step, ()))
    lowest = plan_by_code(prepared, read, None)
    assert len(lowest.tried_bytes) == 1 and lowest.peak_bytes - 1000 < 0.8 * plain
    for share in (1.0, 0.9, 0.75):
        budget = 1000 + int(share * plain)
        plan = plan_by_code(prepared, read, budget)
        assert lowest.peak_bytes <= plan.peak_bytes <= budget and len(plan.tried_bytes) <= 3
        assert plan.recompute_seconds <= lowest.recompute_seconds
    with pytest.raises(Infeasible) as told:
        plan_by_code(prepared, read, lowest.peak_bytes - 1)
    assert told.value.minimum_bytes == lowest.peak_bytes


@pytest.mark.sweep
def test_the_lowest_plan_is_tried_before_a_budget_is_refused() -> None:
    """Where code stood above what graphs say, the same plan was chosen again, and the budget refused."""
    torch.compiler.reset()
    prepared = prepare_joint_graphs(*trace_joint_graphs(*MODELS["language"]()), seconds=1.0)
    lowest = plan_by_code(prepared, lambda plan: Lowered(peak_bytes=1, first_bytes=1), None)

    def read(plan: CompiledPlan) -> Lowered:
        held = 100 if plan.graphs == lowest.graphs else 2 * max(joint_levels(prepared.step, ()))
        return Lowered(peak_bytes=held, first_bytes=held)

    assert plan_by_code(prepared, read, max(joint_levels(prepared.step, ()))).graphs == lowest.graphs


class Recomputes(nn.Module):
    """It recomputes its blocks by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Narrow() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x.sum()


def test_the_cut_of_torch_itself_is_tried_before_a_budget_is_refused() -> None:
    """Code stood above what graphs say for each plan of ours, and a budget was refused that the plain step held."""
    torch.compiler.reset()
    prepared = prepare_joint_graphs(*trace_joint_graphs(Recomputes(), BATCH), seconds=1.0)
    ours: list[CompiledPlan] = []

    def above(plan: CompiledPlan) -> Lowered:
        ours.append(plan)
        return Lowered(peak_bytes=1000, first_bytes=1000)

    with pytest.raises(Infeasible):
        plan_by_code(prepared, above, 100)
    own = ours[-1]
    assert any(own.again.values()) and len(ours) <= 4
    assert own.graphs != plan_by_code(prepared, above, None).graphs  # that is the lowest one by what graphs say

    def read(plan: CompiledPlan) -> Lowered:
        held = 100 if plan.graphs == own.graphs else 1000
        return Lowered(peak_bytes=held, first_bytes=held)

    assert plan_by_code(prepared, read, 100).graphs == own.graphs
    assert plan_by_code(prepared, read, None).graphs == own.graphs  # "min" named a peak above what was held for 100


CUTS = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(st.integers(0, 9), max_size=3).map(tuple))


@given(cuts=st.lists(CUTS, min_size=2, max_size=2), peak=st.integers(0, 9))
def test_what_torch_keeps_is_kept_by_what_a_plan_cuts(cuts: list[dict[str, tuple[int, ...]]], peak: int) -> None:
    first, second = (
        Partition(CompiledPlan(graphs=tuple(PlannedGraph(signature=name, again=again) for name, again in each.items())))
        for each in cuts
    )
    assert (first.uuid() == second.uuid()) == (cuts[0] == cuts[1])
    assert (pickle.dumps(first) == pickle.dumps(second)) == (cuts[0] == cuts[1])
    priced = Partition(msgspec.structs.replace(first.plan, peak_bytes=peak, graphs=first.plan.graphs[::-1]))
    assert pickle.dumps(priced) == pickle.dumps(first)
    restored = pickle.loads(pickle.dumps(first))
    assert restored.plan.again == first.plan.again and restored.uuid() == first.uuid()


@pytest.mark.parametrize("kept", [False, True])
def test_torch_keeps_no_graph_of_ours_beyond_the_plan(kept: bool) -> None:
    """`force_autograd_cache` keeps graphs by what they compute: a plain one would stand in the place of a cut one."""
    torch.compiler.reset()
    model = Narrow()
    with torch._functorch.config.patch(force_autograd_cache=kept):
        plain, _ = trained(outside(copy.deepcopy(model)), BATCH)
        torch.compiler.reset()
        compiled = autockpt.apply(outside(model), "min", inputs=BATCH, seconds=1.0)
        sizes, _ = trained(compiled, BATCH)
    assert sizes[-1] < plain[-1]
