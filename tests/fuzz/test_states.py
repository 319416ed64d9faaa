"""Counters wherever a forward can reach them: counted once, or the call that counts is kept, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest

from tests.doors import HookState, Tags
from tests.fuzz.check import Difference, check
from tests.fuzz.states import OWN, PLACES, STATES
from tests.fuzz.tree import Case, Choice, How, N


def case(kinds: Iterable[str], micro: int = 1) -> Case:
    parts = [N("List", N("Linear"), N(kind)) for kind in kinds]
    return Case(N("List", *parts, N("Linear")), How(check=True, micro=micro), Choice(picks=(*range(400),), fill=True))


def of(place: str) -> list[str]:
    return [
        kind
        for kind in STATES
        if kind.startswith((f"State{place}Forward", f"State{place}Before", f"State{place}After"))
    ]


@pytest.mark.parametrize("place", PLACES)
def test_a_counter_is_counted_once_wherever_it_lives(place: str) -> None:
    """Whatever writes it, and whenever it is read: it is exact, or the call that counts is kept, and named."""
    found = check(case(of(place)))
    assert found.result in (("exact",) if place in OWN else ("exact", "refused")) and found.replays


@pytest.mark.parametrize("place", ["Hook", "Global"])
def test_what_hooks_keep_is_put_back_and_their_call_is_recomputed(place: str) -> None:
    found = check(case([f"State{place}BeforeNever", f"State{place}AfterNever"], micro=2))
    assert found.result == "exact" and found.replays


def attributes_of_parameters_unseen() -> Any:
    return mock.patch.multiple(
        Tags, are_there=lambda self: True, with_some=lambda self: [], put=lambda self, before: None
    )


def hooks_twice() -> Any:
    return mock.patch.object(HookState, "put_back", lambda self: None)


@pytest.mark.parametrize(
    ("plant", "place"),
    [
        (attributes_of_parameters_unseen, "Parameter"),
        (attributes_of_parameters_unseen, "Buffer"),
        (hooks_twice, "Hook"),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[], Any], place: str) -> None:
    with plant(), pytest.raises(Difference):
        check(case(of(place)))
