"""Planning that is done once, where a test asks for the same again: it takes far more time than what is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from autockpt.solvers.plans.baselines import SPARING
from tests.doors import profile_index, solving

__all__ = ["candidates_once", "remembering"]


@contextmanager
def candidates_once() -> Iterator[None]:
    """Find the candidates of a profile once, however many plans are made from it.

    What time cut short is found again, and so it is on another host, and for a solver that spares products.
    """
    last, find = list[Any](), vars(solving)["find_candidates"]

    def once(profile: Any, **options: Any) -> Any:
        host, sparing = vars(profile_index)["first_costs"], options.get("solver") in SPARING
        if not (last and last[0] is profile and last[1:3] == [host, sparing] and not last[3].notes):
            last[:] = profile, host, sparing, find(profile, **options)
        return last[3]

    with mock.patch.object(solving, "find_candidates", once):
        yield


@contextmanager
def remembering(room: ModuleType, *names: str) -> Iterator[None]:
    """Let functions of a room answer equal arguments, profiles read anew among them, as they did before."""

    def remembered(work: Callable[..., Any]) -> Callable[..., Any]:
        known: list[tuple[object, Any]] = []

        def answer(*args: Any, **options: Any) -> Any:
            asked = (args, options)
            for before, answered in known:
                if before == asked:
                    return answered
            known.append((asked, work(*args, **options)))
            return known[-1][1]

        return answer

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(room, name, remembered(getattr(room, name))))
        yield
