"""Ranks that do not do the same: who has no room, takes fewer steps, is profiled; and wrappers that come late."""

from __future__ import annotations

import pytest
from torch import distributed

from .conftest import Both
from .models import Shared

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

DDP, FSDP = Shared(by="ddp"), Shared(by="fsdp")


NO_ROOM = [
    (DDP, "begins"),
    (FSDP, "within"),
    pytest.param(DDP, "within", marks=pytest.mark.sweep),
    pytest.param(FSDP, "begins", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("shared", "when"), NO_ROOM)
def test_where_one_rank_has_no_room_all_hear_of_it(both: Both, shared: Shared, when: str) -> None:
    """It raised on that rank, and the others waited for it until their timeout."""
    first, second = both("unlike.no_room", shared=shared, when=when)
    assert (first["kind"], second["kind"]) == ("NotApplicable", "NoRoom")
    doing = {"begins": "began a step (NoRoom: ", "within": "trained (NoRoom: the stash is full)"}[when]
    assert first["words"].startswith(f"rank 1 has failed as it {doing}")
    assert second["words"] in first["words"]
    assert first["done"] == second["done"] == (when == "within")
    assert first["goes on"] and second["goes on"]


@pytest.mark.parametrize("loop", ["joined", "accumulated"])
def test_ranks_that_take_unequal_numbers_of_steps_plan_by_themselves(both: Both, loop: str) -> None:
    """One waited in a collective for the other, which waited for it where the first plan is agreed on."""
    found = both(f"unlike.{loop}")
    assert all(each["same"] for each in found)
    assert [each["planned"] for each in found] == [loop == "accumulated", True]


@pytest.mark.parametrize("steps", [range(3), pytest.param(range(1, 3), marks=pytest.mark.sweep)])
def test_a_profiler_on_one_rank_only_puts_the_plan_off(both: Both, steps: range) -> None:
    assert all(each["planned"] for each in both("unlike.profiled", shared=DDP, steps=steps))


def test_a_model_that_is_wrapped_after_its_plan_is_planned_anew(both: Both) -> None:
    """The buckets of DistributedDataParallel were in no plan then: 0.87 of 14.02 MB."""
    for each in both("unlike.wrapped_late", share=0.6):
        assert each["same"]
        assert max(each["held"]) <= each["budget"]
        assert len(each["predicted"]) == 2 and all(each["segments"])
        assert each["held"][-1] <= each["predicted"][-1] <= 1.01 * each["held"][-1]


def test_buckets_inside_a_model_are_measured_and_planned_with(both: Both) -> None:
    """`measure` saw none of them, a plan counted none, and a replay of such a part would have begun a reduction."""
    for each in both("unlike.inside"):
        assert each["seen"][0] == each["seen"][1]
        assert each["same"] and each["segments"]
        assert max(each["held"]) <= each["budget"]
        assert each["held"][-1] <= each["predicted"] <= 1.01 * each["held"][-1]
        assert {"front#0", "back#0"}.isdisjoint(call for calls in each["segments"] for call in calls)


def test_a_new_optimizer_that_makes_its_state_is_no_step_of_training(both: Both) -> None:
    """`get_state_dict` steps it with a learning rate of nought: a warning said that a step ran without a plan."""
    assert both("unlike.restored") == [{"said": [], "planned": True}] * 2


def test_a_fault_that_one_rank_finds_is_planned_with_on_all(both: Both) -> None:
    """Where replays run collectives a plan of its own for one rank would have all wait for ever."""
    first, second = both("unlike.faulty")
    assert first["same"] and second["same"]
    assert first["segments"] == second["segments"]
    calls = {call for segment in first["segments"] for call in segment}
    assert calls and "blocks.1#0" not in calls


def test_ranks_that_share_layers_record_and_plan_together(both: Both) -> None:
    """Other sizes, one that no plan holds, and a budget that is too small, with one plan of all."""
    first, second = both("unlike.sized")
    assert first["same"] and second["same"]
    assert first["segments"] and first["segments"] == second["segments"]
    assert first["steps"] == second["steps"] == 2
    assert first["infeasible"].splitlines()[0] == second["infeasible"].splitlines()[0]
    assert ("rank 0 says so" in second["infeasible"]) and "says so" not in first["infeasible"]
