"""Rounds in which ranks agree: each hears what all say, for a few operations of the store a rank."""

from __future__ import annotations

import contextlib
import datetime
import functools
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed

from tests.doors import rank_group, torch_private

c10d: Any = distributed

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="needs torch.distributed")

MOST_OPERATIONS = 7
"""Of a rank in a round in which nobody says anything new, looks at whether it is over left out."""


class CountingStore:
    """A store of this process that counts what each rank asks of it."""

    def __init__(self, own: threading.local) -> None:
        self.keys = c10d.HashStore()
        self.asked: dict[int, list[str]] = {}
        self._own = own

    def __getattr__(self, name: str) -> Any:
        if name != "check" and hasattr(self._own, "rank"):
            self.asked.setdefault(self._own.rank, []).append(name)
        return getattr(self.keys, name)


def heard_by(rounds: list[list[Any]], teller: int = -1) -> tuple[list[list[Any]], CountingStore]:
    """Return what each rank hears, round by round, where it says what `rounds` has for it; and the store.

    What was asked of that is counted in the last ten rounds. A `teller` says what it has to say in the last round and
    waits for nobody.
    """
    ranks, own = len(rounds[0]), threading.local()
    store, heard = CountingStore(own), [list[Any]() for _ in range(ranks)]

    def agrees(rank: int) -> None:
        own.rank = rank
        group = rank_group.Group(tuple(range(ranks)))
        for left, values in zip(reversed(range(len(rounds))), rounds, strict=True):
            if left == 9:
                store.asked[rank] = []
            if rank == teller and not left:
                group.tell(values[rank])
            else:
                heard[rank].append(group.agree(values[rank], list))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_private, "own_rank", lambda: own.rank)
        patch.setattr(torch_private, "default_store", lambda: store)
        threads = [threading.Thread(target=agrees, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return heard, store


@st.composite
def _rounds(draw: st.DrawFn) -> list[list[Any]]:
    """Rounds of a few ranks, which mostly say what they said before."""
    ranks = draw(st.integers(2, 4))
    values = [{"says": 0}] * ranks
    rounds = []
    for _ in range(draw(st.integers(1, 8))):
        for rank in draw(st.sets(st.integers(0, ranks - 1), max_size=2)):
            values = [*values[:rank], {"says": draw(st.integers(0, 2))}, *values[rank + 1 :]]
        rounds.append(values)
    return rounds


@settings(max_examples=25, deadline=None)
@given(rounds=_rounds())
def test_each_rank_hears_what_all_say(rounds: list[list[Any]]) -> None:
    heard, _ = heard_by(rounds)
    assert heard == [rounds] * len(rounds[0])


@pytest.mark.parametrize("new", [0, 1])
def test_a_rank_that_waits_for_nobody_is_heard(new: int) -> None:
    """Also where it says what it said before, and another one something new."""
    rounds = [[{"says": 0}] * 3, [{"says": 0}, {"says": 0}, {"says": new}]]
    heard, _ = heard_by(rounds, teller=0)
    assert heard == [rounds[:1], rounds, rounds]


def test_a_rank_that_is_interrupted_as_it_waits_is_heard_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know how that round ended. The other one waited for it until the timeout."""
    store = c10d.HashStore()
    store.set_timeout(datetime.timedelta(seconds=20))
    monkeypatch.setattr(torch_private, "default_store", lambda: store)
    groups = []
    for rank in (0, 1):
        monkeypatch.setattr(torch_private, "own_rank", lambda rank=rank: rank)
        groups.append(rank_group.Group((0, 1)))
    first, second = groups
    monkeypatch.setattr(second, "_wait", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        second.agree("here", list)
    second.tell("left")
    assert first.agree("here", list) == ["here", "here"]
    assert first.agree("here", list) == ["here", "left"]


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_round_in_which_nobody_says_anything_new_costs_few_operations_however_many_ranks(ranks: int) -> None:
    """Each rank read the values of all in each step: on 8 of them 3.6 ms, and two keys of each round stayed."""
    rounds = [[{"says": rank} for rank in range(ranks)]] * 21
    heard, store = heard_by(rounds)
    assert heard == [rounds] * ranks
    assert all(len(asked) <= 10 * MOST_OPERATIONS for asked in store.asked.values())
    assert store.keys.num_keys() <= 2 * ranks + 4


class Interrupted:
    """A store of which one operation is interrupted: the next one, the one after that and so on; 0 for none.

    Args:
        keys: the store.
        done: whether the operation is done before the interrupt comes. What counts always is.
    """

    def __init__(self, keys: Any, *, done: bool = False) -> None:
        self.keys, self.done, self.left = keys, done, 0
        self.counted = threading.Semaphore(0)  # one for each time that something was counted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.keys, name)
        return functools.partial(self._ask, name, found) if callable(found) else found

    def _ask(self, name: str, ask: Callable[..., Any], *args: Any) -> Any:
        self.left -= 1
        if not self.left and not self.done and name != "add":  # see `_come`
            raise KeyboardInterrupt
        answer = ask(*args)
        if name == "add":
            self.counted.release()
        if not self.left:
            raise KeyboardInterrupt
        return answer


@pytest.mark.parametrize("done", [False, True], ids=["undone", "done"])
@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("new", ["here", "there"])
@pytest.mark.parametrize("ahead", [False, True], ids=["waits", "is-the-last"])
def test_a_rank_that_is_interrupted_anywhere_in_a_round_is_heard(
    monkeypatch: pytest.MonkeyPatch, new: str, number: int, *, done: bool, ahead: bool
) -> None:
    """The other rank waited until the timeout: in a round that nobody ended, or for a value that nobody set."""
    keys = c10d.HashStore()
    keys.set_timeout(datetime.timedelta(seconds=20))
    stores, groups = (Interrupted(keys), Interrupted(keys, done=done)), []
    for rank in (0, 1):
        monkeypatch.setattr(torch_private, "default_store", lambda rank=rank: stores[rank])
        monkeypatch.setattr(torch_private, "own_rank", lambda rank=rank: rank)
        groups.append(rank_group.Group((0, 1)))
    heard, has_left = [], threading.Event()

    def goes_on() -> None:
        heard.append(groups[0].agree("here", list))
        if not ahead:
            has_left.wait()
        while len(heard) < 3 and "left" not in heard[-1]:
            heard.append(groups[0].agree(f"round {len(heard)}" if new == "here" else "here", list))

    other = threading.Thread(target=goes_on)
    other.start()
    groups[1].agree("here", list)
    for _ in range(3 if ahead else 0):  # as it opens the group, and in two rounds
        stores[0].counted.acquire()
    stores[1].left = number
    with contextlib.suppress(KeyboardInterrupt):
        groups[1].agree(new, list)
    stores[1].left = 0
    groups[1].tell("left")
    has_left.set()
    other.join()
    assert [value for _, value in heard] in (["here", "left"], ["here", new, "left"])
