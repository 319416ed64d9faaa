"""The solver `speed` on real models: within its budgets, bit for bit exact, and nothing that multiplies runs again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import autockpt
from autockpt import Infeasible
from autockpt._candidates import find_candidates
from autockpt._candidates.presets import multiplies
from autockpt._install import install
from autockpt._plan import Plan
from autockpt._solve import segments_of
from autockpt.solvers.speed import PRESET
from tests.end_to_end.reference import Reference, counting_replays, reference
from tests.frames.comparing import steps

MODELS = ("gpt2", "t5", "resnet50")


class Counting(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operators(plain: Reference) -> Counter[str]:
    counting = Counting()
    with counting:
        plain.case.step()
    return counting.seen


def flops(plain: Reference) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        plain.case.step()
    return int(counter.get_total_flops())


def minimum(plain: Reference) -> int:
    with pytest.raises(Infeasible) as caught:
        autockpt.solve(plain.profile, 1, solver="speed")
    assert caught.value.solver == "speed"
    return caught.value.minimum_bytes


@pytest.mark.parametrize(
    ("model", "depth"),
    [pytest.param(m, d, id=f"{m}-{word}") for m in MODELS for d, word in ((0.5, "half-way"), (1.0, "lowest"))],
)
def test_it_keeps_its_budget_changes_nothing_and_multiplies_nothing_again(model: str, depth: float) -> None:
    plain = reference(model)
    budget = plain.plain_peak_bytes - int(depth * (plain.plain_peak_bytes - minimum(plain)))
    plan = autockpt.solve(plain.profile, budget, solver="speed")
    assert plan.solver == "speed"
    assert plan.peak_bytes <= budget < plain.plain_peak_bytes
    before, work = operators(plain), flops(plain)
    autockpt.apply(plain.case.model, plan=plan)
    try:
        with counting_replays() as replays:
            outcome = plain.outcome()
        measured = plain.measured_peak()
        after, work_after = operators(plain), flops(plain)
    finally:
        autockpt.remove(plain.case.model)
    assert plain.plain.differences(outcome) == []
    assert len(replays) == len(plan.segments)
    assert measured <= budget
    again = {name: after[name] - before[name] for name in after if after[name] > before[name]}
    assert again, "nothing ran again at all"
    assert not [name for name in again if multiplies(name)]
    assert work_after == work


def test_what_is_recomputed_whole_multiplies_again() -> None:
    """So the counts above would show it."""
    plain = reference(MODELS[-1])
    work = flops(plain)
    autockpt.apply(plain.case.model, plan=autockpt.solve(plain.profile, plain.plain_peak_bytes, solver="all"))
    try:
        assert flops(plain) > 1.1 * work
    finally:
        autockpt.remove(plain.case.model)


class Product(nn.Module):
    """A block whose product is not kept as it is: something changes it in place."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(32, 32)), nn.LayerNorm(32)
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.einsum("bi,ij->bj", self.norm(x), self.weight)
        product = product.relu_() if self.in_place else product.relu()
        return torch.tanh(product) * x


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
def test_a_product_is_told_by_its_operators_and_blocks_that_cannot_keep_one_are_left_out(in_place: bool) -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(*(Product(in_place=in_place) for _ in range(4))), torch.randn(256, 32)
    profile = autockpt.profile(model, batch)
    candidates = find_candidates(profile)
    marked = [i for i, candidate in enumerate(candidates.problem.candidates) if candidate.preset == PRESET]
    if in_place:
        assert marked == []
        return
    assert [candidates.runs[i].keep for i in marked] == [(f"{b}#0/einsum#0",) for b in range(4)]

    def run(model: nn.Module) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        return out.square().mean()

    plain = steps(copy.deepcopy(model), run)
    install(model, Plan(segments=segments_of(profile, candidates, marked)))
    assert plain.differences(steps(model, run)) == []


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
