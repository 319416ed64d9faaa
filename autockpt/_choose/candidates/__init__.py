"""From a profile to a problem: what may be recomputed, what that holds, restores and costs. No torch.

A profile is laid out as a `book`, with the `glue` around blocks as calls; every one of the `runs` of calls becomes one
of the `drafts`, blocks `selective` ones too; `steps` states them all as a problem. `planned` states the segments of a
plan in the same way, and `restated` the candidates of one step for another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..._data.profile import Profile
from ...solvers.blocks import block_chain
from ...solvers.problem import Problem
from .book import Book
from .drafts import Draft, Run, make_draft
from .glue import glue_of, is_glue, with_glue
from .runs import runs_of
from .selective import selective_drafts
from .steps import cut_clock, movable, state_problem

__all__ = ["Candidates", "Run", "find_candidates", "is_glue", "state_candidates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A problem, and what each of its candidates means.

    Attributes:
        profile: the recorded step, in which torch functions outside the blocks are calls of their own: all indices of
            calls are of this one.
        problem: what the solver sees.
        runs: for each candidate of the problem, the calls it stands for.
        refused: calls that save something but cannot be replayed exactly, with the reason.
        edges: tick of the profile at which each step of the problem begins; that of an optimizer comes after them.
        tensors: for each tensor of the problem, its index in the profile.
        pinned_keep: patterns of calls that none of them runs again.
        pinned_recompute: patterns of calls that the problem requires to run again.
    """

    profile: Profile
    problem: Problem
    runs: tuple[Run, ...]
    refused: tuple[tuple[int, str], ...]
    edges: tuple[int, ...]
    tensors: tuple[int, ...]
    pinned_keep: tuple[str, ...] = ()
    pinned_recompute: tuple[str, ...] = ()


def find_candidates(profile: Profile) -> Candidates:
    """Find everything in a profile that may be recomputed, and state it as a problem.

    Args:
        profile: the recorded step.

    Returns:
        The problem, what its candidates mean, and what was refused.

    Whole calls at every depth and runs of consecutive sibling calls; around the blocks also of glue, the torch
    functions that their callers call in between. O(candidates × calls and tensors inside).
    """
    profile, elements = _blocks_and_glue(profile)
    book = Book(profile)
    runs = (members for children in book.children for members in runs_of(children, book))
    drafts = _whole(book, runs)
    single = {draft.start for draft in drafts if len(draft.run.members) == 1}
    _joined(drafts, selective_drafts(book, elements, single))
    saving = (i for i, call in enumerate(profile.calls) if i and book.saves_in(i) and not is_glue(call))
    refused = tuple((call, reason) for call in saving if (reason := book.reason((call,))))
    return state_candidates(book, drafts, refused=refused)


def state_candidates(
    book: Book,
    drafts: list[Draft],
    *,
    refused: tuple[tuple[int, str], ...] = (),
) -> Candidates:
    """State drafts as a problem; see `Candidates`."""
    profile = book.profile
    edges = cut_clock(profile, book, drafts)
    return Candidates(
        profile=profile,
        problem=state_problem(profile, book, drafts, edges),
        runs=tuple(draft.run for draft in drafts),
        refused=refused,
        edges=edges,
        tensors=tuple(movable(profile, drafts)),
    )


def _blocks_and_glue(profile: Profile) -> tuple[Profile, tuple[int, ...]]:
    """State the glue around the blocks as calls of its own; return the blocks with the profile that has it."""
    book = Book(profile)
    drafts = _whole(book, ((call,) for call in range(1, len(profile.calls)) if book.saves_in(call)))
    blocks = block_chain(state_problem(profile, book, drafts, cut_clock(profile, book, drafts))).elements
    parents = _callers(profile, blocks)
    if len(blocks) == 1:  # the root, if no call can be recomputed, or the one that can: else what it runs is one piece
        parents.update(blocks)
    profile, moved = with_glue(profile, glue_of(profile, parents))
    return profile, tuple(moved[block] for block in blocks if block)  # the root is no candidate


def _whole(book: Book, runs: Iterable[tuple[int, ...]]) -> list[Draft]:
    """Draft those of the runs that can be recomputed."""
    able = (members for members in runs if not book.reason(members))
    return [draft for members in able if (draft := make_draft(book, members)) is not None]


def _callers(profile: Profile, calls: Iterable[int]) -> set[int]:
    """All calls inside which these lie."""
    found: set[int] = set()
    for call in calls:
        while (call := profile.calls[call].parent) >= 0:
            found.add(call)
    return found


def _joined(drafts: list[Draft], more: list[Draft]) -> None:
    """Join drafts to those that there are, unless one stands for the same."""
    place = {_what(draft.run): i for i, draft in enumerate(drafts)}
    for draft in more:
        if _what(draft.run) not in place:
            place[_what(draft.run)] = len(drafts)
            drafts.append(draft)


def _what(run: Run) -> tuple[object, ...]:
    """What a run stands for, whatever it holds and costs."""
    return run.members, run.idle.keep, run.idle.skip
