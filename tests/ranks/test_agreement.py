"""Errors come on all ranks or on none, and name one; nobody waits for ever."""

from __future__ import annotations

from typing import Any, cast
from unittest import mock

import pytest
from torch import distributed, nn

from autockpt import NotApplicable, Plan, Segment
from tests.doors import One, agreement, ranks_of, what_runs

from .conftest import Both
from .models import Shared

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

DDP, FSDP = Shared(by="ddp"), Shared(by="fsdp")


def daily(which: Shared) -> pytest.MarkDecorator:
    """One of the two with the suite, both in the sweep: what ranks agree on is asked for in the same way."""
    rows = (pytest.param(each, marks=() if each is which else pytest.mark.sweep) for each in (DDP, FSDP))
    return pytest.mark.parametrize("shared", [*rows], ids=["ddp", "fsdp"])


def test_one_rank_agrees_with_itself() -> None:
    ranks = ranks_of(nn.Linear(2, 2))
    assert isinstance(ranks, One)
    assert ranks.agree(3, sum) == 3


def test_what_a_rank_has_begun_is_dropped_where_another_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler of a recorded step ran on, so that nothing could be measured as long as the error was held."""
    asked = agreement.Agreement(cast(Any, None))
    monkeypatch.setattr(agreement.Agreement, "waits", True)
    monkeypatch.setattr(asked, "_ranks", Failing())
    begun = mock.Mock()
    with pytest.raises(NotApplicable, match="rank 1 has failed"):
        asked.together(lambda: begun)
    begun.drop.assert_called_once_with()


class Failing(One):
    """Ranks of which another one has failed as a step began."""

    def agree(self, value: Any, choose: Any, *, parting: bool = False) -> Any:
        raise NotApplicable("rank 1 has failed")


def test_plans_are_told_apart_by_what_runs_and_not_by_figures() -> None:
    """Seconds are measured by each rank: under tensor parallelism all made another plan in every step."""
    first, second = (Segment(calls=("h.0#0",), recompute_seconds=each, freed_bytes=3) for each in (1.0, 2.0))
    assert what_runs(Plan(segments=(first,))) == what_runs(Plan(segments=(second,)))
    third = Segment(calls=("h.0#0",), recompute_seconds=1.0, freed_bytes=3, offload="boundary")
    assert what_runs(Plan(segments=(first,))) != what_runs(Plan(segments=(third,)))


def test_ranks_agree_round_by_round(both: Both) -> None:
    found = both("rounds")
    for rank, each in enumerate(found):
        assert each == {"members": [0, 1], "own": rank, "highest": [1, 5], "again": [0, 1]}


@daily(DDP)
def test_unequal_budgets_are_one_error(both: Both, shared: Shared) -> None:
    found = both("unequal", shared=shared)
    for each in found:
        assert (each["error"], each["steps"]) == ("BudgetError", 0)
        assert "budget 8000000 bytes on rank 0, budget 8000001 bytes on rank 1" in each["words"]


@daily(FSDP)
def test_a_budget_that_is_too_small_for_one_rank_is_so_for_all(both: Both, shared: Shared) -> None:
    first, second = both("one_infeasible", shared=shared)
    assert [first["error"], second["error"]] == ["Infeasible"] * 2
    assert first["steps"] == second["steps"]
    assert "rank 1 says so" in first["words"] and "rank 1" not in second["words"]
    assert first["words"].splitlines()[0] == second["words"].splitlines()[0]


def test_an_error_of_later_steps_would_be_one_ranks_own(both: Both) -> None:
    assert [each["error"] for each in both("strict", shared=FSDP)] == ["NotApplicable"] * 2


@daily(FSDP)
def test_ranks_that_meet_other_sizes_wait_until_all_can_plan(both: Both, shared: Shared) -> None:
    for each in both("ragged", shared=shared):
        assert each["tight"]["segments"]
        assert each["tight"]["told"] == each["loose"]["told"]


@daily(DDP)
def test_a_rank_that_does_not_come_is_named(both: Both, shared: Shared) -> None:
    first, second = both("absent", shared=shared)
    assert first["words"].startswith("rank 1 did not come within 3 s")
    assert first["same"] and second["same"]


@daily(FSDP)
def test_where_one_rank_trains_without_a_plan_all_do(both: Both, shared: Shared) -> None:
    first, second = both("taken_off", shared=shared)
    assert not first["planned"] and not second["planned"]
    assert len(first["told"]) == len(second["told"])


@daily(DDP)
def test_where_planning_fails_on_one_rank_all_hear_of_it(both: Both, shared: Shared) -> None:
    first, second = both("failing", shared=shared)
    assert second == {"error": "ZeroDivisionError", "words": "planned by nobody"}
    assert first["error"] == "NotApplicable"
    assert first["words"].startswith("rank 1 has failed as it planned (ZeroDivisionError: planned by nobody)")


@pytest.mark.parametrize("by", ["tp", pytest.param("sp", marks=pytest.mark.sweep)])
def test_ranks_that_share_layers_plan_once(both: Both, by: str) -> None:
    """They planned in every step: what they compared held the seconds that each rank predicts."""
    assert both("plans_made", shared=Shared(by=by)) == [1, 1]
