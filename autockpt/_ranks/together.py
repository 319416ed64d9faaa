"""The same done on all ranks that train one model, or on none of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .base import Ranks
from .errors import left_of, plain_error, refuse_failed, told_as, unequal_of

T = TypeVar("T")


def done_together(
    ranks: Ranks,
    do: Callable[[], T],
    undo: Callable[[], object],
    *,
    asked: Callable[[T], Mapping[str, str]],
    meanwhile: str,
    waits: Callable[[T | None], bool] = lambda _: True,
) -> T:
    """Do something on this rank and, if it fails on another one, undo it and raise.

    Args:
        ranks: those that all do it.
        do: does it.
        undo: undoes it.
        asked: says, of what was done, what must be the same on all ranks, in words.
        meanwhile: what a rank did as it failed, as part of a sentence.
        waits: whether this rank waits for the others, by what it has done (None: it has failed); else it tells them,
            and goes on.

    Raises:
        AutockptError: a rank has failed or does not answer, or they ask for different things; raised on all ranks.
        Exception: whatever `do` raises on this rank.
    """
    own: Exception | None = None
    done: T | None = None
    said: dict[str, Any] = {}
    try:
        done = do()
        said = {"asked": dict(asked(done))}
    except Exception as error:  # whatever it is, the others must not wait for this rank
        own, said = error, plain_error(error, meanwhile)
    except BaseException as error:
        with contextlib.suppress(RuntimeError):
            ranks.tell({"left": f"has failed as it {meanwhile} ({told_as(error)})", "failed": True})
        raise

    try:
        if waits(done):
            ranks.agree(said, functools.partial(_refuse_unlike, ranks, own))
        else:
            ranks.tell(said)
        if own is not None:
            raise own
    except BaseException:
        if done is not None:
            undo()
        raise
    assert done is not None
    return done


def _refuse_unlike(ranks: Ranks, own: Exception | None, every: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what ranks have said if one has failed, or if they ask for other things; `own` is this rank's error."""
    if left := left_of(ranks.members, every):
        raise left
    refuse_failed(ranks, every, own)
    if unequal := unequal_of(ranks.members, every):
        raise unequal
