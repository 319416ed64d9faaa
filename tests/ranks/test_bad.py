"""Bad input, and what goes wrong on one rank alone: every rank says what it is, nobody waits longer than is named."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import pytest
import torch
from torch import distributed

import autockpt
from tests.doors import rank_group, torch_private

from .conftest import Both
from .models import Shared, step, tokens, writer

c10d: Any = distributed

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

DDP, FSDP, TENSORS, SEQUENCES = (Shared(by=by) for by in ("ddp", "fsdp", "tp", "sp"))
BRIEF = {by: Shared(by=by, quiet=False, seconds=10.0) for by in ("ddp", "fsdp", "tp", "sp")}
sweep = pytest.mark.sweep


def refuse_others(found: list[dict[str, Any]], kind: str, words: str) -> None:
    """Refuse unless all ranks raise the same."""
    assert [each["error"] for each in found] == [kind] * len(found)
    assert all(words in each["words"] for each in found), found
    assert len({each["steps"] for each in found}) == 1


UNEQUAL = {
    "version": ("NotApplicable", "version 0.1.0 on rank 0, version 0.0.1 on rank 1"),
    "budget": ("BudgetError", "bytes on rank 0, budget 8000001 bytes on rank 1"),
    "solver": ("NotApplicable", "solver auto on rank 0, solver sqrt on rank 1"),
    "pins": ("NotApplicable", "pins none on rank 0, pins keep='blocks.0' on rank 1"),
}
ASKED = [
    pytest.param(what, shared, marks=() if shared is TENSORS or what == "solver" else sweep, id=f"{what}, {shared.by}")
    for what in UNEQUAL
    for shared in (DDP, FSDP, TENSORS, SEQUENCES)
]


@pytest.mark.parametrize(("what", "shared"), ASKED)
def test_ranks_that_ask_for_different_things_say_so(both: Both, what: str, shared: Shared) -> None:
    refuse_others(both("bad.unequal", shared=shared, what=what), *UNEQUAL[what])


@pytest.mark.parametrize("late", [True, False])
def test_a_batch_for_one_rank_alone_is_refused_on_both(both: Both, late: bool) -> None:
    """One raised KeyError, and the other heard that the connection was closed; or one never got a plan."""
    found = both("bad.given_a_batch", late=late)
    refuse_others(found, "NotApplicable", "inputs given on rank 0, inputs not given on rank 1")


INTERRUPTED = [
    *((shared, 0) for shared in (DDP, TENSORS)),
    *(pytest.param(shared, 1, marks=sweep) for shared in (DDP, TENSORS)),
    *(pytest.param(shared, which, marks=sweep) for shared in (FSDP, SEQUENCES) for which in (0, 1)),
]


@pytest.mark.parametrize(("shared", "which"), INTERRUPTED)
def test_a_rank_that_is_interrupted_as_it_plans_is_named_on_the_other(both: Both, shared: Shared, which: int) -> None:
    """The others waited for its plan until their timeout, or raised KeyError."""
    found = both("bad.interrupted", shared=shared, which=which)
    assert found[which]["error"] == "KeyboardInterrupt"
    said = f"rank {which} has failed as a step began (KeyboardInterrupt), so no rank makes a plan"
    assert (found[1 - which]["error"], found[1 - which]["words"]) == ("NotApplicable", said)
    assert found[0]["steps"] == found[1]["steps"]


@pytest.mark.parametrize("shared", [DDP, pytest.param(TENSORS, marks=sweep)], ids=["ddp", "tp"])
def test_a_wait_for_another_rank_ends_by_an_interrupt(both: Both, shared: Shared) -> None:
    """It was heard when the wait was over, as the timeout of the process group says: after half an hour with gloo."""
    first, second = both("bad.interrupted_in_a_wait", shared=shared)
    assert second["error"] == "KeyboardInterrupt"
    assert first["words"].startswith("rank 1 has failed as a step began (KeyboardInterrupt)")
    assert first["then"] == ""  # where ranks share layers, the profiler of the step that had begun ran on


@pytest.mark.parametrize("at", [0, *(pytest.param(at, marks=sweep) for at in (1, 2, 4))])
def test_a_rank_that_raises_in_forward_may_take_another_sample(both: Both, at: int) -> None:
    """Before the plan it begins one step more than the others; after it, nobody asks."""
    for each in both("bad.raising", shared=DDP, at=at, again=True):
        assert each["same"] and not each["error"] and each["planned"]
        assert each["held"] <= 1 < each["plain held"]


@sweep
@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("by", BRIEF)
def test_a_rank_that_raises_in_forward_leaves_the_others_to_their_timeout(both: Both, by: str, at: int) -> None:
    """As without a budget: collectives say so, in the step that waits."""
    first, second = both("bad.raising", shared=BRIEF[by], at=at, again=False)
    assert first["same"] and second["same"]
    assert first["error"] == first["plain"]["error"] == "RuntimeError"
    assert (second["error"], second["words"]) == ("ValueError", "a bad sample")
    assert first["steps"] == second["steps"] == at


@pytest.mark.parametrize(("by", "joins"), [("ddp", True), *(pytest.param(by, False, marks=sweep) for by in BRIEF)])
def test_a_rank_without_a_batch_at_the_end(both: Both, by: str, joins: bool) -> None:
    shared = Shared(by=by, quiet=False) if joins else BRIEF[by]
    first, second = both("bad.fewer", shared=shared, joins=joins)
    assert first["same"] and second["same"] and second["planned"] and not second["error"]
    expected = "" if joins else "NotApplicable" if by in ("tp", "sp") else "RuntimeError"
    assert first["error"] == expected
    if by in ("tp", "sp"):  # it waited in vain as a step began, with a plan, and said that it was for the first one
        assert first["words"].startswith("rank 1 did not come within 10 s to where all ranks agree on their plan")


@sweep
@pytest.mark.parametrize(("shared", "at"), [(DDP, 0), (FSDP, 4), (TENSORS, 4), (SEQUENCES, 4)], ids=BRIEF)
def test_a_collective_of_the_users_own_may_time_out(both: Both, shared: Shared, at: int) -> None:
    first, second = both("bad.timed_out", shared=shared, at=at)
    assert (first["error"], second["error"]) == ("RuntimeError", "")
    assert "1000ms" in first["words"]
    assert first["same"] and second["same"] and first["planned"] and second["planned"]
    assert max(first["held"], second["held"]) <= 1 < first["plain held"]


@sweep
def test_a_budget_on_one_rank_of_those_that_share_layers(both: Both) -> None:
    first, second = both("bad.absent", shared=TENSORS)
    assert first["words"].startswith("rank 1 did not come within 3 s")
    assert first["steps"] == second["steps"] == 2


PLANS = [
    (TENSORS, ("blocks", "other blocks"), "plan of 2 segments ("),
    (TENSORS, ("blocks", None), "plan to be made on rank 1"),
    (TENSORS, ("blocks", "layers"), "the plan was made for another model: Writer has no 'layers.0'"),
    pytest.param(SEQUENCES, ("blocks", "other blocks"), "plan of 2 segments (", marks=sweep),
    pytest.param(SEQUENCES, ("blocks", "layers"), "the plan was made for another model: Writer has no", marks=sweep),
    (FSDP, ("two in one", "other two"), "plan of 1 segments ("),
    pytest.param(FSDP, ("two in one", "layers"), "another model: FSDPWriter has no 'layers.0'", marks=sweep),
]


@pytest.mark.parametrize(("shared", "plans", "words"), PLANS)
def test_plans_by_hand_that_do_not_go_together(both: Both, shared: Shared, plans: Any, words: str) -> None:
    """Under tensor parallelism two plans trained on: replays took each other's results, and gradients were wrong."""
    refuse_others(both("bad_plans.given", shared=shared, plans=plans), "NotApplicable", words)


@pytest.mark.parametrize("shared", [TENSORS, *(pytest.param(each, marks=sweep) for each in (DDP, FSDP, SEQUENCES))])
def test_the_same_plan_by_hand_on_both(both: Both, shared: Shared) -> None:
    for each in both("bad_plans.given", shared=shared, plans=("blocks", "blocks")):
        assert each["same"] and each["planned"] and not each["error"]


def test_data_parallelism_around_shared_layers_is_refused(both: Both) -> None:
    """Its second step ended in an error of torch's on one rank."""
    refuse_others(both("bad_plans.around_layers"), "NotApplicable", "inside are layers that are shared by tensor para")


SIZES = [pytest.param(shared, 100, marks=sweep, id=shared.by) for shared in (DDP, FSDP, TENSORS, SEQUENCES)]


@pytest.mark.parametrize(("shared", "steps"), SIZES)
def test_a_hundred_steps_of_random_sizes(both: Both, shared: Shared, steps: int) -> None:
    for each in both("bad.random_sizes", shared=shared, steps=steps, share=0.6):
        assert each["same"] and each["planned"]
        assert each["held"] <= 1 < each["plain held"]


def test_ranks_whose_groups_overlap_name_who_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the next one in another group: they end with their groups' timeout, and do not hang."""
    store, own = c10d.HashStore(), threading.local()
    store.set_timeout(datetime.timedelta(seconds=0.5))
    monkeypatch.setattr(torch_private, "default_store", lambda: store)
    monkeypatch.setattr(torch_private, "own_rank", lambda: own.rank)
    monkeypatch.setattr(rank_group, "MOMENT_SECONDS", 0.1)
    said: dict[int, str] = {}

    def waits(rank: int, members: tuple[int, ...]) -> None:
        own.rank = rank
        try:
            rank_group.Group(members).agree(rank, list)
        except autockpt.NotApplicable as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=waits, args=(rank, tuple(sorted((rank, (rank + 1) % 3))))) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [said[rank].startswith(f"rank {(rank + 1) % 3} did not come within") for rank in range(3)] == [True] * 3


def test_a_store_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own words did not say what it was for."""
    held: Any = c10d.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    store: Any = c10d.TCPStore("127.0.0.1", held.port, 2, False)
    monkeypatch.setattr(torch_private, "default_store", lambda: store)
    monkeypatch.setattr(torch_private, "own_rank", lambda: 1)
    group = rank_group.Group((0, 1))
    del held
    with pytest.raises(autockpt.NotApplicable, match="does not answer"):
        group.agree(1, list)


def test_without_a_process_group_each_process_trains_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torchrun starts a script that opens none."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    found, models = [], [writer(), autockpt.apply(writer(), 8_000_000)]
    for model in models:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found.append([step(model, optimizer, [tokens(1, number)], 100 + number) for number in range(4)])
    assert found[0] == found[1] and autockpt.plan_of(models[1]) is not None
