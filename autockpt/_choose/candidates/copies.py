"""Which copies a replay makes of what is one tensor in forward.

forward    member a ──► h ──┬──────────────────► member b
                            └─► h[0], caller ──►            one tensor: h[0] is a view
replay     member a ──► h' ────────────────────► member b
           h, held ───────► h[0] ──────────────►            two: what the caller made is held, what a made is made again
"""

from __future__ import annotations

from typing import Literal

from .book import Book

__all__ = ["made_beside", "maker_of"]


def maker_of(book: Book, save: int, members: tuple[int, ...]) -> int:
    """Tell apart the copies that a replay makes of what is one tensor in forward; -1 for that which forward makes too.

    Where autocast finds a weight's cast in its cache, the forward that saves it neither made it nor was given it.
    Replays leave that cache alone: every function casts anew.
    """
    calls, functions, saves = book.profile.calls, book.profile.functions, book.profile.saves
    tensor, function = saves.tensor[save], saves.function[save]
    if function >= 0 and tensor in book.casts:
        own = book.birth_function[tensor] == function or tensor in functions.reads[function]
        return -1 if own else len(calls) + function
    member = book.bearer(save, members)
    given = any(tensor == argument.tensor for argument in calls[member].arguments)
    return -1 if given or book.born_inside(tensor, member) else member


def made_beside(book: Book, save: int, members: tuple[int, ...]) -> Literal["made", "given", ""]:
    """Tell what a replay makes of the boundary again, which the caller's own code made of a member's result.

    What a save holds was ``made`` by the member that saves it; or that was ``given`` it in two ways: as an earlier
    member returned it, which the replay makes again, and as the caller's code made it, which is held.
    """
    tensor, member = book.profile.saves.tensor[save], book.bearer(save, members)
    if book.born_inside(tensor, member):
        return "made"
    mixed = any(each.mixed and each.tensor == tensor for each in book.profile.calls[member].arguments)
    return "given" if mixed and members[0] <= book.birth_call[tensor] else ""
