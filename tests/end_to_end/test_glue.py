"""Glue outside the blocks: which torch functions candidates reach, and what that is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from autockpt.solvers import simulate
from tests.doors import find_candidates, find_planned, segments_of
from tests.end_to_end.clocks import retimed
from tests.end_to_end.reference import reference, timeless
from tests.fuzz.units import without_host
from tests.hosts import host
from tests.toys.told import Told
from tests.zoo import Case, UNet

PREDICTION_TOLERANCE = 0.001


def test_what_stands_before_a_block_is_freed_with_it() -> None:
    candidates = find_candidates(reference("unet").profile)
    problem = candidates.problem
    runs = {problem.candidates[i].name: (i, run) for i, run in enumerate(candidates.replays)}
    (alone, block), (together, joined) = (runs[name] for name in ("up.1#0", "#0/interpolate#1 … up.1#0"))
    both = candidates.index.nodes[joined.members[1]]
    (made,) = both.outputs
    assert both.key == "#0/cat#1"
    assert joined.segment.freed_bytes - block.segment.freed_bytes == candidates.index.bytes[made]
    assert joined.segment.boundary_bytes < block.segment.boundary_bytes
    levels = [simulate(problem, (choice,)).level_bytes for choice in (alone, together)]
    assert min(a - b for a, b in zip(*levels, strict=True)) <= 0 < max(a - b for a, b in zip(*levels, strict=True))


def test_glue_costs_the_host_what_a_unit_does_and_no_further_call() -> None:
    found = []
    for member_seconds in (0.0, 1.0):
        with host(member_seconds=member_seconds):
            candidates = find_candidates(reference("unet").profile)
        seconds = {candidate.name: candidate.recompute_seconds for candidate in candidates.problem.candidates}
        found.append([seconds[name] for name in ("up.1#0", "#0/interpolate#1 … up.1#0")])
    assert found[0] == found[1]


def test_a_plan_with_glue_is_exact_and_peaks_as_predicted(tmp_path: Path) -> None:
    plain = reference("unet")
    plan = autockpt.solve(plain.profile, int(0.6 * plain.plain_peak_bytes))
    assert [key for segment in plan.segments for key in segment.calls if key.startswith("#0/")]
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert plan.timeline(plain.profile).peak_bytes == plan.peak_bytes
    autockpt.apply(plain.case.model, plan=plan)
    try:
        assert plain.plain.differences(plain.outcome()) == []
        assert plan.peak_bytes == pytest.approx(plain.measured_peak(), rel=PREDICTION_TOLERANCE)
    finally:
        autockpt.remove(plain.case.model)
    assert autockpt.verify(UNet(), plain.case.kwargs, plan=plan).exact


def functional() -> nn.Module:
    """Calls no module: all that it computes are torch functions of its own code, with a list of parameters."""

    def act(own: Told, x: Tensor) -> Tensor:
        for weight in own.weights:
            x = x + F.gelu(F.dropout(F.layer_norm(x, (64,)) @ weight, 0.1))
        return x

    return Told(act, weights=nn.ParameterList(torch.randn(64, 64) / 8 for _ in range(8)))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_that_calls_no_module_keeps_a_budget(wrapped: bool) -> None:
    """It had no candidates: whatever the budget, all was kept."""
    torch.manual_seed(0)
    model = nn.Sequential(functional()) if wrapped else functional()
    plain = timeless(Case(model, {"input" if wrapped else "x": torch.randn(512, 64)}))
    budget_bytes = int(0.5 * plain.plain_peak_bytes)
    plan = autockpt.solve(plain.profile, budget_bytes)
    with plain.under(plan):
        assert plain.plain.differences(plain.outcome()) == []
        measured_bytes = plain.measured_peak()
    assert plan.peak_bytes == pytest.approx(measured_bytes, rel=PREDICTION_TOLERANCE)
    assert measured_bytes <= budget_bytes


def test_glue_left_alone_inside_a_segment_costs_the_mode_that_watches_its_caller() -> None:
    recorded = autockpt.profile(nn.Sequential(functional()), torch.randn(512, 64))
    profile = without_host(recorded, dice=0)
    candidates = find_candidates(profile)
    segments = segments_of(candidates, range(len(candidates.replays)))
    partly = [segment for segment in segments if segment.calls == ("0#0",) and segment.keep]
    assert partly
    for segment in partly:
        with host(mode_seconds=1.0):
            (replay,) = find_planned(profile, Plan(segments=(segment,))).replays
        assert replay.segment.recompute_seconds - segment.recompute_seconds == pytest.approx(
            1 + len(recorded.functions)
        )


def test_glue_in_which_a_replay_ends_before_it_runs_costs_nothing() -> None:
    recorded = autockpt.profile(functional(), torch.randn(512, 64))
    profile = retimed(without_host(recorded, dice=0), [1e-3] * len(recorded.functions))
    names = ["layer_norm", "matmul", "dropout"]
    for stop, seconds in ((1, 1e-3), (2, 1e-3), (3, 3e-3)):  # the product saves its factors, and does not run
        plan = Plan.of([[f"#0/{name}#1" for name in names[:stop]]])
        assert find_planned(profile, plan).problem.candidates[0].recompute_seconds == pytest.approx(seconds)


def odd(own: Told, x: Tensor) -> Any:
    """Calls functions between blocks that must not run again by themselves, and one that may."""
    x = F.batch_norm(own.blocks[0](x), own.mean, own.variance, training=True)
    x = own.blocks[1](x)
    with torch.no_grad():
        scale = x.sigmoid()
    x = own.blocks[2](x * scale)
    noise = torch.empty_like(x).normal_(generator=own.generator)
    x = F.rrelu(x + noise, training=True)
    x = own.blocks[3](F.silu(x))
    return x.mul_(2).exp()


def test_functions_that_cannot_run_again_by_themselves_are_told() -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Tanh(), nn.Linear(64, 64)) for _ in range(4))
    statistics = {"mean": torch.zeros(64), "variance": torch.ones(64)}
    model = Told(odd, blocks=blocks, **statistics, generator=torch.Generator())
    profile = autockpt.profile(model, torch.randn(32, 64))
    functions, against = profile.functions, profile.refused("function")
    said = {
        functions.key(f): against.get(f, "") for f, call in enumerate(functions.call) if profile.calls[call].key == "#0"
    }
    assert said.pop("batch_norm#0") == "changes a buffer"
    assert said.pop("sigmoid#0") == "runs while gradients are off"
    assert said.pop("normal_#0").startswith("is given nothing that requires a gradient")
    assert said.pop("rrelu#0").startswith("draws the noise of an RReLU")
    assert not said["silu#0"] and not said["exp#0"] and not said["mul#0"]
    candidates = find_candidates(profile)
    calls = [{candidates.index.nodes[member].key for member in run.members} for run in candidates.replays]
    members = set().union(*calls)
    assert "#0/silu#0" in members
    assert not {"#0/batch_norm#0", "#0/sigmoid#0", "#0/rrelu#0"}.intersection(members)
    assert all("blocks.3#0" in run for run in calls if "#0/mul_#0" in run)  # it changes what the block returned
