"""The solver `speed` on real models: within its budgets, bit for bit exact, and nothing that multiplies runs again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import autockpt
from autockpt import Infeasible, Plan
from autockpt.solvers.judge import Judge
from autockpt.solvers.plans.baselines import speed
from tests.doors import find_candidates, install, multiplies, segments_of
from tests.end_to_end.reference import Reference, counting_replays, reference
from tests.frames.comparing import steps
from tests.remembered import candidates_once
from tests.toys.told import Told

MODELS = ("gpt2", "t5", "resnet50")


class Counting(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def work(plain: Reference) -> tuple[Counter[str], int]:
    """Run a step; return its operators, and its FLOPs as torch counts them."""
    counting, counter = Counting(), FlopCounterMode(display=False)
    with counting, counter:
        plain.case.step()
    return counting.seen, int(counter.get_total_flops())


@pytest.fixture(autouse=True, scope="module")
def once() -> Iterator[None]:
    with candidates_once():
        yield


@lru_cache(maxsize=1)
def plain_work(model: str) -> tuple[Counter[str], int]:
    return work(reference(model))


@lru_cache(maxsize=1)
def minimum(model: str) -> int:
    """The lowest peak that the solver reaches."""
    with pytest.raises(Infeasible) as caught:
        autockpt.solve(reference(model).profile, 1, solver="speed")
    assert caught.value.solver == "speed"
    return caught.value.minimum_bytes


@pytest.mark.parametrize(
    ("model", "depth"),
    [pytest.param(m, d, id=f"{m}-{word}") for m in MODELS for d, word in ((0.5, "half-way"), (1.0, "lowest"))],
)
def test_it_keeps_its_budget_changes_nothing_and_multiplies_nothing_again(model: str, depth: float) -> None:
    plain = reference(model)
    budget = plain.plain_peak_bytes - int(depth * (plain.plain_peak_bytes - minimum(model)))
    plan = autockpt.solve(plain.profile, budget, solver="speed")
    assert plan.solver == "speed"
    assert plan.peak_bytes <= budget < plain.plain_peak_bytes
    before, flops_before = plain_work(model)
    autockpt.apply(plain.case.model, plan=plan)
    try:
        with counting_replays() as replays:
            outcome = plain.outcome()
        measured = plain.measured_peak()
        after, flops_after = work(plain)
    finally:
        autockpt.remove(plain.case.model)
    assert plain.plain.differences(outcome) == []
    assert len(replays) == len(plan.segments)
    assert measured <= budget
    again = {name: after[name] - before[name] for name in after if after[name] > before[name]}
    assert again, "nothing ran again at all"
    assert not [name for name in again if multiplies(name)]
    assert flops_after == flops_before > 0


def test_what_is_recomputed_whole_multiplies_again() -> None:
    """So the counts above would show it."""
    plain = reference(MODELS[-1])
    _, flops_before = plain_work(MODELS[-1])
    autockpt.apply(plain.case.model, plan=autockpt.solve(plain.profile, plain.plain_peak_bytes, solver="all"))
    try:
        assert work(plain)[1] > 1.1 * flops_before
    finally:
        autockpt.remove(plain.case.model)


class OwnProduct(torch.autograd.Function):
    """A product in an autograd function of the user's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.t(), x.t() @ gradients[0]


def block(kind: str) -> nn.Module:
    """A block whose product may be one that cannot be kept, with a part in which nothing multiplies."""

    def act(own: Told, x: torch.Tensor) -> Any:
        if kind == "custom":
            product: torch.Tensor = OwnProduct.apply(own.norm(x), own.weight)  # type: ignore[no-untyped-call]
        else:
            product = torch.einsum("bi,ij->bj", own.norm(x), own.weight)
        return own.tail(product.relu_() if kind == "in-place" else product.relu()) * x

    tail = Told(lambda own, x: torch.tanh(torch.sigmoid(x)).exp())
    return Told(act, weight=nn.Parameter(torch.randn(32, 32)), norm=nn.LayerNorm(32), tail=tail)


@pytest.mark.parametrize("kind", ["einsum", "in-place", "custom"])
def test_a_product_is_told_by_its_operators_and_never_runs_again(kind: str) -> None:
    """Of a block with one that cannot be kept only parts are recomputed, without it."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(*(block(kind) for _ in range(4))), torch.randn(256, 32)
    profile = autockpt.profile(model, batch)
    candidates = find_candidates(profile)
    *_, marked = speed(Judge(candidates.problem))
    assert len(marked) >= 3

    def run(model: nn.Module) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        return out.square().mean()

    plain = steps(copy.deepcopy(model), run)
    planned = copy.deepcopy(model)
    install(planned, Plan(segments=segments_of(candidates, marked)))
    counters = [FlopCounterMode(display=False) for _ in range(2)]
    for each, counter in zip((model, planned), counters, strict=True):
        with counter:
            run(each).backward()
    assert counters[0].get_total_flops() == counters[1].get_total_flops() > 0
    planned.zero_grad()
    assert plain.differences(steps(planned, run)) == []


def test_calls_that_multiply_outside_any_function_are_left_out() -> None:
    torch.manual_seed(0)
    profile = autockpt.profile(nn.Sequential(*(block("einsum") for _ in range(4))), torch.randn(256, 32))
    ops = profile.ops
    outside = tuple(-1 if multiplies(name) else f for f, name in zip(ops.function, ops.name, strict=True))
    assert -1 in outside
    changed = msgspec.structs.replace(
        profile,
        ops=msgspec.structs.replace(ops, function=outside),
        saves=msgspec.structs.replace(profile.saves, op=(-1,) * len(profile.saves)),
    )
    candidates = find_candidates(changed)
    marked = [candidate for candidate in candidates.problem.candidates if not candidate.multiplies]
    multiplying = {call for f, call in zip(outside, candidates.index.op_nodes, strict=True) if f < 0}
    assert marked
    assert not [one.name for one in marked if not multiplying.isdisjoint(range(one.start, one.stop))]


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("aten.mm.default", True),
        ("aten.addmm.out", True),
        ("aten.convolution.default", True),
        ("aten.mkldnn_convolution.default", True),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", True),
        ("aten._efficient_attention_forward.default", True),
        ("aten._cudnn_rnn.default", True),
        ("aten._thnn_fused_lstm_cell.default", False),
        ("aten.native_layer_norm.default", False),
        ("aten.mul.Tensor", False),
        ("aten.upsample_bilinear2d.default", False),
        ("aten._convert_weight_to_int4pack.default", False),
        ("linear", True),
        ("scaled_dot_product_attention", True),
        ("conv_transpose2d", True),
        ("softmax", False),
    ],
)
def test_operators_that_multiply_are_known_by_name(operator: str, expected: bool) -> None:
    assert multiplies(operator) is expected
