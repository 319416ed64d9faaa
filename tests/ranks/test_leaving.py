"""A rank that fails or leaves is heard by all, in words; from then on all train without a plan, or all with one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import distributed, nn

import autockpt
from tests.doors import One, Pipeline, agreement, torch_private

from .conftest import Both
from .models import Shared

c10d: Any = distributed

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

TENSORS, SEQUENCES = Shared(by="tp"), Shared(by="sp")
BY = [TENSORS, pytest.param(SEQUENCES, marks=pytest.mark.sweep)]


class Leaving(One):
    """Two ranks that say the same, until the other one is interrupted after some rounds."""

    members: Any = (0, 1)

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def agree(self, value: Any, choose: Any, *, parting: bool = False) -> Any:
        self.left -= 1
        other = {"left": "has failed as a step began (KeyboardInterrupt)", "failed": True} if self.left < 0 else value
        return choose([value, other])


@pytest.mark.parametrize("collectives", [False, True])
def test_a_rank_that_is_interrupted_in_any_round_of_a_plan_is_named(
    collectives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it waited in the last but one, the others raised KeyError."""
    ready: Any = SimpleNamespace(plan=autockpt.Plan(segments=()), unfit="")
    named = 0
    for rounds in range(8):
        asked = agreement.Agreement(cast(Any, None))
        monkeypatch.setattr(asked, "_ranks", Leaving(rounds))
        asked.runs_collectives = collectives
        try:
            assert asked.plan(1, lambda: ready, lambda plan, unfit: ready) is ready
        except autockpt.NotApplicable as error:
            assert str(error).startswith("rank 1 has failed as a step began (KeyboardInterrupt)")
            assert not asked.waits
            named += 1
    assert named == (4 if collectives else 3)  # rounds of a plan


class Answering(One):
    """Two ranks, of which the other one says what is written down for it, round by round."""

    members: Any = (0, 1)

    def __init__(self, *answers: Any) -> None:
        self.answers, self.plan = list(answers), None

    def agree(self, value: Any, choose: Any, *, parting: bool = False) -> Any:
        self.plan = value if "plan" in value else self.plan
        answer = self.answers.pop(0)
        return choose([value, self.plan if answer == "the same plan" else answer])


def test_a_plan_that_one_of_two_ranks_cannot_take_is_taken_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their replays run collectives: the next rank makes one, which both take."""
    made, adopted = (cast(Any, SimpleNamespace(plan=autockpt.Plan(segments=()), unfit="")) for _ in "12")
    again = ["the same plan", "the same plan", {"does": True}]
    ranks = Answering({"need": 1}, {}, {}, {"does": False}, *again)
    asked = agreement.Agreement(cast(Any, None))
    monkeypatch.setattr(asked, "_ranks", ranks)
    asked.runs_collectives = True
    assert asked.plan(2, lambda: made, lambda plan, unfit: adopted) is adopted
    assert ranks.answers == []


def test_what_any_rank_could_not_replay_is_planned_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = agreement.Agreement(cast(Any, None))
    monkeypatch.setattr(asked, "_ranks", Answering())
    first: dict[str, Any] = {"able": True, "asked": {}, "under": "one", "refused": {}}
    assert asked._agreed([first, {**first, "refused": {"h#0": "draws"}}]) == "go on"
    assert asked.refused == {"h#0": "draws"}


@pytest.mark.parametrize("shared", BY, ids=lambda shared: shared.by)
def test_where_a_step_cannot_begin_on_one_rank_none_keeps_a_plan_whose_replays_run_collectives(
    both: Both, shared: Shared
) -> None:
    """That rank kept its own, whose replays waited for the others, if the loop went on with the next batch."""
    first, second = both("leaving.failing_as_a_step_begins", shared=shared)
    said = "rank 1 has failed as it began a step (MemoryError: none left), so no rank makes a plan"
    assert [first["errors"], second["errors"]] == [[(4, "NotApplicable", said)], [(4, "MemoryError", "none left")]]
    for each in (first, second):
        assert each["planned"] == (True, False) and each["same"]


@pytest.mark.sweep
@pytest.mark.parametrize("shared", [TENSORS, SEQUENCES], ids=lambda shared: shared.by)
def test_where_one_rank_takes_its_budget_off_none_keeps_a_plan_whose_replays_run_collectives(
    both: Both, shared: Shared
) -> None:
    """The others kept it, and their replays waited for that rank."""
    for each in both("leaving.taking_it_off", shared=shared):
        assert each == {"errors": [], "planned": (True, False), "same": True}


@pytest.mark.parametrize("shared", BY, ids=lambda shared: shared.by)
def test_where_a_plan_cannot_be_put_on_one_rank_none_has_one_whose_replays_run_collectives(
    both: Both, shared: Shared
) -> None:
    """The others had it, and their replays waited for that rank."""
    for each in both("leaving.patched_between", shared=shared):
        assert each == {"errors": [], "planned": [False, False, True, False], "same": True}


@pytest.mark.parametrize("error", [ValueError, pytest.param(KeyboardInterrupt, marks=pytest.mark.sweep)])
def test_where_a_given_batch_fails_on_one_rank_all_hear_of_it(both: Both, error: type[BaseException]) -> None:
    """The others waited for that rank until the timeout of the process group."""
    first, second = both("leaving.failing_on_a_given_batch", error=error)
    assert first["error"] == "NotApplicable" and first["words"].startswith("rank 1 has failed ")
    assert "a bad sample" in first["words"] and "a bad sample" in second["words"]


@pytest.mark.sweep
def test_ranks_that_planned_before_they_were_wrapped_agree_once(both: Both) -> None:
    for each in both("leaving.given_before_it_is_wrapped"):
        assert each["planned"] and each["rounds"][-1] == each["rounds"][-3]


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_stage_whose_step_cannot_begin_raises_when_all_do(both: Both, which: int) -> None:
    """It raised as its step began, and the others waited for what it should have sent."""
    found = both("leaving.failing_stage", which=which)
    for rank, each in enumerate(found):
        ((number, words),) = each["errors"]
        assert number == 0 and "layers that nobody can record" in words and not each["planned"]
        assert words.startswith(f"rank {which} has failed as it began a step") is (rank != which)


def test_a_stage_raises_no_error_of_a_step_that_it_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that was ahead failed in its next step, and heard nothing from one that had raised before that."""
    store, stages = c10d.HashStore(), []
    monkeypatch.setattr(torch_private, "default_store", lambda: store)
    monkeypatch.setattr(torch_private, "ranks_in", lambda group: [0, 1])
    model = nn.Linear(1, 1)
    monkeypatch.setattr(torch_private, "stages", lambda: [SimpleNamespace(submod=model, group=None)])
    monkeypatch.setattr(torch_private, "asks_for_shapes", lambda stage: False)
    for rank in (0, 1):
        monkeypatch.setattr(torch_private, "own_rank", lambda rank=rank: rank)
        stages.append(Pipeline())
        stages[-1].asks_for_shapes([model], model)
    ahead, behind = stages
    for stage in stages:
        stage.begins()
    ahead.stepped()
    ahead.begins()
    assert ahead.fails(autockpt.NotApplicable("no plan"))
    behind.stepped()
    behind.begins()
    for stage, words in ((behind, "rank 0 has failed"), (ahead, "no plan")):
        with pytest.raises(autockpt.NotApplicable, match=words):
            stage.stepped()
        assert not stage.waits
