"""Boundaries that ranks have alike as candidates: in parts where that is cheaper, or lower."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

import autockpt
from tests.doors import CopiedTensors


@pytest.fixture(scope="module")
def step() -> autockpt.Profile:
    """A step of small layers whose boundaries are most of what recomputing leaves, on the first of four ranks."""
    every = [[nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16), nn.Tanh()] for _ in range(12)]
    model = nn.Sequential(*(nn.Sequential(*each) for each in every))
    found = autockpt.profile(model, torch.zeros(1024, 16, requires_grad=True), mode="fake")
    given = {each.tensor for call in found.calls for each in call.arguments if each.graph and each.tensor >= 0}
    return msgspec.structs.replace(found, copies=CopiedTensors(ranks=4, tensors=tuple(sorted(given))))


def parts(rate: float = 1e15, ranks: int = 4) -> autockpt.Offload:
    return autockpt.Offload(where="shard", write_rate=rate, read_rate=rate, move_seconds=0.0, ranks=ranks)


def test_a_budget_is_kept_to_by_recomputing_less(step: autockpt.Profile) -> None:
    budget = int(1.2 * autockpt.solve(step, "lowest").peak_bytes)
    whole, cheaper = autockpt.solve(step, budget), autockpt.solve(step, budget, offload=parts())
    assert cheaper.recompute_seconds < whole.recompute_seconds
    assert cheaper.offload == parts() and cheaper.timeline(step).peak_bytes == cheaper.peak_bytes <= budget
    for segment in cheaper.segments:
        if segment.offload:
            assert segment.boundary_bytes * 3 == segment.moved_bytes and segment.until is None


def test_a_slow_gather_is_not_taken_where_recomputing_does(step: autockpt.Profile) -> None:
    budget = int(1.2 * autockpt.solve(step, "lowest").peak_bytes)
    assert autockpt.solve(step, budget, offload=parts(rate=1.0)).offload is None


@pytest.mark.parametrize("ranks", [2, 3, 0])
def test_another_number_of_ranks_has_nothing_alike(step: autockpt.Profile, ranks: int) -> None:
    plan = autockpt.solve(step, "lowest", offload=parts(ranks=ranks))
    assert plan.offload is None and any("none waits in parts" in note for note in plan.notes)


def test_sizes_that_ranks_do_not_divide_stay_whole(step: autockpt.Profile) -> None:
    assert step.copies is not None
    odd = msgspec.structs.replace(step, copies=msgspec.structs.replace(step.copies, ranks=7))
    assert autockpt.solve(odd, "lowest", offload=parts(ranks=7)).offload is None


def test_what_ranks_have_alike_comes_back_from_a_file(step: autockpt.Profile, tmp_path: object) -> None:
    step.save(f"{tmp_path}/step.json")
    assert autockpt.Profile.load(f"{tmp_path}/step.json").copies == step.copies
    assert '"copies"' not in autockpt.Profile.load("gpt2-xl").explain()
    broken = msgspec.structs.replace(step.copies, tensors=(10**6,))  # type: ignore[type-var]
    with pytest.raises(autockpt.InvalidFile, match="names a tensor that is not in the profile"):
        msgspec.structs.replace(step, copies=broken)


def test_a_plan_in_parts_comes_back_from_a_file(step: autockpt.Profile, tmp_path: object) -> None:
    plan = autockpt.solve(step, int(1.2 * autockpt.solve(step, "lowest").peak_bytes), offload=parts())
    plan.save(f"{tmp_path}/plan.json")
    assert autockpt.Plan.load(f"{tmp_path}/plan.json") == plan
