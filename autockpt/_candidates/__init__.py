"""From a profile to a problem: what may be recomputed, what that holds, restores and costs. No torch.

A profile is laid out as a `book`; every run of calls becomes one of the `drafts`, blocks `selective` ones too; `steps`
states them all as a problem. `planned` states the segments of a plan in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._profile import Profile
from ..solvers.blocks import block_chain
from ..solvers.problem import Problem
from ..solvers.speed import PRESET
from .book import Book
from .drafts import Draft, Run, make_draft
from .presets import speed_drafts
from .selective import MENU_SECONDS, selective_drafts
from .steps import cut_clock, movable, state_problem

__all__ = ["MENU_SECONDS", "Candidates", "Run", "find_candidates"]

MAX_RUNS_PER_PARENT = 700
"""Runs of siblings grow with the square of their number; beyond this, only the shorter ones are offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A problem, and what each of its candidates means.

    Attributes:
        problem: what the solver sees.
        runs: for each candidate of the problem, the calls it stands for.
        refused: calls that save something but cannot be replayed exactly, with the reason.
        edges: tick of the profile at which each step of the problem begins; that of an optimizer comes after them.
        tensors: for each tensor of the problem, its index in the profile.
        pinned_keep: patterns of calls that none of them runs again.
        pinned_recompute: patterns of calls that the problem requires to run again.
        notes: where ways to recompute a part of a call may be missing, and why.
    """

    problem: Problem
    runs: tuple[Run, ...]
    refused: tuple[tuple[int, str], ...]
    edges: tuple[int, ...]
    tensors: tuple[int, ...]
    pinned_keep: tuple[str, ...] = ()
    pinned_recompute: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_candidates(profile: Profile, *, menu_seconds: float = MENU_SECONDS) -> Candidates:
    """Find everything in a profile that may be recomputed, and state it as a problem.

    Args:
        profile: the recorded step.
        menu_seconds: for finding the ways worth having to recompute a part of a call; where they run out fewer are
            offered, and the notes say so.

    Returns:
        The problem, what its candidates mean, and what was refused.

    Whole calls at every depth and runs of consecutive sibling calls; O(candidates × calls and tensors inside).
    """
    book = Book(profile)
    drafts: list[Draft] = []
    refused: list[tuple[int, str]] = []
    for parent in range(len(profile.calls)):
        children = book.children[parent]
        for child in children:
            if book.saves_in(child) and (reason := book.reason((child,))):
                refused.append((child, reason))
        for members in _runs(children, book):
            if not book.reason(members) and (draft := make_draft(book, members)) is not None:
                drafts.append(draft)
    whole = state_problem(profile, book, drafts, cut_clock(profile, book, drafts))
    single = {draft.start for draft in drafts if len(draft.run.members) == 1}
    elements = block_chain(whole).elements
    selective, notes = selective_drafts(book, elements, single, time_limit_seconds=menu_seconds)
    drafts += selective
    marked = _joined(drafts, speed_drafts(book, elements, single))
    edges = cut_clock(profile, book, drafts)
    return Candidates(
        problem=state_problem(profile, book, drafts, edges, presets=dict.fromkeys(marked, PRESET)),
        runs=tuple(draft.run for draft in drafts),
        refused=tuple(refused),
        edges=edges,
        tensors=tuple(movable(profile, drafts)),
        notes=notes,
    )


def _joined(drafts: list[Draft], more: list[Draft]) -> set[int]:
    """Join drafts to those that there are, unless one stands for the same; return where they stand."""
    place = {(draft.run.members, draft.run.keep, draft.run.skip): i for i, draft in enumerate(drafts)}
    for draft in more:
        same = (draft.run.members, draft.run.keep, draft.run.skip)
        if same not in place:
            place[same] = len(drafts)
            drafts.append(draft)
    return {place[draft.run.members, draft.run.keep, draft.run.skip] for draft in more}


def _runs(children: list[int], book: Book) -> list[tuple[int, ...]]:
    """Runs of consecutive siblings that begin and end with a call that saves something."""
    saving = [bool(book.saves_in(child)) for child in children]
    longest = len(children)
    while longest > 1 and longest * (2 * len(children) - longest + 1) // 2 > MAX_RUNS_PER_PARENT:
        longest -= 1
    return [
        tuple(children[first : last + 1])
        for first in range(len(children))
        if saving[first]
        for last in range(first, min(first + longest, len(children)))
        if saving[last]
    ]
