"""Boundaries that ranks have alike, kept in parts: bit for bit the plain training, from less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed

import autockpt
from tests.doors import phrase

from .conftest import Both
from .models import writer
from .sharing import BOUNDARY_BYTES, DEPTH, by_hand

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "gloo"])
def test_a_rank_holds_its_part_of_each_boundary(both: Both, quiet: bool) -> None:
    for found in both("sharing.held", quiet=quiet):
        assert found["same"] == [True, True]
        whole, parts = found["held"]
        assert not quiet or whole - parts == DEPTH * BOUNDARY_BYTES // 2


def test_two_backwards_and_one_that_fails(both: Both) -> None:
    assert both("sharing.backwards") == [{"same": True, "failed": True}] * 2


def test_the_solver_takes_parts_where_they_pay(both: Both) -> None:
    """They reach lower peaks, and what is measured there is what was predicted."""
    found = both("sharing.chosen")
    for each in found:
        stays, parts, between = each["stays"], each["parts"], each["between"]
        for one in (stays, parts, between):
            assert one["same"] and len(one["plans"]) == 1
            assert one["peaks"][-1] <= one["plan"].peak_bytes <= 1.02 * one["peaks"][-1]
        assert stays["plan"].offload is None and parts["plan"].offload.ranks == 2
        assert parts["plan"].peak_bytes < stays["plan"].peak_bytes - BOUNDARY_BYTES
        assert any(segment.offload for segment in between["plan"].segments)
        assert max(between["peaks"]) <= each["budget"]
        moved = [segment for segment in parts["plan"].segments if segment.offload]
        assert "gathered for replays" in parts["plan"].explain() and "left to other ranks" in phrase(parts["plan"])
        assert {(each.moved_bytes, each.boundary_bytes) for each in moved} == {(BOUNDARY_BYTES // 2,) * 2}
    for name in ("parts", "between"):
        first, second = (_what_runs(each[name]["plan"]) for each in found)
        assert first == second


def _what_runs(plan: autockpt.Plan) -> list[object]:
    return [(segment.calls, segment.keep, segment.offload) for segment in plan.segments]


def test_what_is_not_the_same_on_all_ranks_is_an_error_on_all(both: Both) -> None:
    """In the step in which it comes to that, and before an optimizer has seen any of it."""
    found = both("sharing.unlike")
    assert found[0] == found[1] and found[0]["steps"] == [0]
    for error in found[0]["errors"]:
        assert "was not the same on all 2 ranks that share layers" in error and "blocks.5#0" in error
    assert len(found[0]["errors"]) == 2


@pytest.mark.parametrize("at", [pytest.param(2, marks=pytest.mark.sweep), 3], ids=["rehearsed", "later"])
def test_once_ranks_differ_nothing_is_in_parts_and_no_call_is_kept_for_it(both: Both, at: int) -> None:
    """A rehearsal gives backward what forward saved; later all ranks raise, and none waits for another."""
    for found in both("sharing.diverging", at=at):
        assert [number for number, _ in found["errors"]] == ([] if at == 2 else [3])
        assert found["parts"][2:] == [True, False] if at == 2 else [True, True, False]
        assert found["refused"] == [] and len(found["plan"].segments) > DEPTH // 2


def test_what_ranks_do_not_have_alike_is_not_kept_in_parts(both: Both) -> None:
    found = both("sharing.not_alike")
    assert any(each["noted"] for each in found)  # by the rank that has made the plan
    for each in found:
        assert each["same"] and not any(segment.offload for segment in each["plan"].segments)


def test_where_nobody_has_parts(both: Both) -> None:
    for found in both("sharing.refused"):
        assert "each rank has a batch of its own" in found["ddp"] and "DistributedDataParallel" in found["ddp"]
        assert "each rank has a batch of its own" in found["fsdp"]
        assert "No parameter of Writer lies on several ranks" in found["whole"]
        assert found["later"] == found["whole"]
        assert "in no process group of the name 'nobody'" in found["another group"]
        assert "parts of boundaries on 4 ranks, and layers of Writer lie on 2" in found["other ranks"]


@pytest.mark.sweep
def test_four_ranks_that_share_layers_and_shards(four: Both) -> None:
    for found in four("sharing.four"):
        assert found["same"]
        assert found["parts"]["plan"].peak_bytes < found["stays"]["plan"].peak_bytes - BOUNDARY_BYTES
        assert found["parts"]["peaks"][-1] <= found["parts"]["plan"].peak_bytes <= 1.02 * found["parts"]["peaks"][-1]


def test_a_model_whose_own_code_runs_collectives(both: Both) -> None:
    assert both("sharing.own_collectives") == [{"same": True}] * 2


def test_rows_of_any_number_of_bytes(both: Both) -> None:
    assert both("sharing.rows", sizes=[1, 2, 7, 4096, 5001]) == [[True] * 5] * 2


def test_a_process_by_itself_has_no_parts() -> None:
    with pytest.raises(autockpt.NotApplicable, match="no process group"):
        autockpt.apply(writer(), "1GB", offload="shard")
    with pytest.raises(autockpt.NotApplicable, match="no process group"):
        autockpt.apply(writer(depth=DEPTH), plan=by_hand(offload="shard"))


def test_a_profile_that_no_ranks_compared_has_no_parts() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    profile = autockpt.profile(model, torch.zeros(64, 64))
    plan = autockpt.solve(profile, "lowest", offload="shard")
    assert any("no boundary was seen to be the same" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (autockpt.BudgetError, {"saved": ("h.*",)}),
        (autockpt.BudgetError, {"where": "host", "ranks": 2}),
        (autockpt.BudgetError, {"ranks": -1}),
    ],
)
def test_parts_that_make_no_sense(kind: type[Exception], given: dict[str, Any]) -> None:
    with pytest.raises(kind):
        autockpt.Offload(**{"where": "shard", "write_rate": 1e9, "read_rate": 1e9, **given})


def test_a_plan_with_parts_moves_boundaries_alone() -> None:
    where = autockpt.Offload.of("shard")
    for given in (autockpt.Segment(calls=("h.0#0",), offload="saved"), _until()):
        with pytest.raises(autockpt.InvalidFile, match="parts of boundaries alone"):
            autockpt.Plan(segments=(given,), offload=where)


def _until() -> autockpt.Segment:
    return autockpt.Segment(calls=("h.0#0",), offload="boundary", until="h.1#0")
