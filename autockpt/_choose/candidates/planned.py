"""A plan as candidates: what its segments hold, restore and cost in the step that a profile recorded."""

from __future__ import annotations

from ..._data.errors import NotApplicable
from ..._data.keys import split_key
from ..._data.plan import Plan, Segment
from ..._data.profile import Profile
from . import Candidates, state_candidates
from .book import Book
from .drafts import NOTHING_IDLE, Draft, Idle, replayed_draft
from .glue import with_glue
from .idle import is_free, name_idle


def find_planned(profile: Profile, plan: Plan) -> Candidates:
    """State the problem in which a plan's segments are all the candidates.

    Args:
        profile: the recorded step.
        plan: made from this profile or from one like it, or written by hand.

    Returns:
        A candidate for each segment but those that never run again, as backward reads nothing of theirs.

    Raises:
        NotApplicable: the step makes no such calls, they are no run of siblings, or no such units lie in them.

    O(segments × calls and tensors inside).
    """
    book, drafts = planned_drafts(profile, plan)
    return state_candidates(book, drafts)


def planned_drafts(profile: Profile, plan: Plan) -> tuple[Book, list[Draft]]:
    """Draft a plan's segments, but those that never run again, in the step laid out with their glue as calls.

    Raises:
        NotApplicable: the step makes no such calls, they are no run of siblings, or no such units lie in them.
    """
    profile, _ = with_glue(profile, _glue(profile, plan))
    book = Book(profile)
    index = {call.key: i for i, call in enumerate(profile.calls)}
    drafts = []
    for segment in plan.segments:
        members = _members(book, index, segment)
        draft = replayed_draft(book, members, _idle(book, index, members, segment))
        if draft is not None:
            drafts.append(draft)
    return book, drafts


def _glue(profile: Profile, plan: Plan) -> list[int]:
    """Find the functions that are calls of a plan's segments."""
    named = {key for segment in plan.segments for key in segment.calls if split_key(key)[1]}
    functions = profile.functions
    refused = profile.refused("function")
    repeatable = (f for f in range(len(functions)) if f not in refused)
    return [f for f in repeatable if f"{profile.calls[functions.call[f]].key}/{functions.key(f)}" in named]


def _members(book: Book, index: dict[str, int], segment: Segment) -> tuple[int, ...]:
    """Find the calls of a segment in the profile."""
    missing = [call for call in segment.calls if call not in index]
    if missing:
        raise NotApplicable(
            f"the plan recomputes {missing[0]!r}, and the recorded step of {book.profile.model} makes no such call: "
            "give the profile that the plan was made from"
        )
    members = tuple(index[call] for call in segment.calls)
    parent = book.profile.calls[members[0]].parent
    siblings = book.children[parent] if parent >= 0 else [0]
    first = siblings.index(members[0])
    if tuple(siblings[first : first + len(members)]) != members:
        raise NotApplicable(
            f"the recorded step of {book.profile.model} does not make the calls from {segment.calls[0]!r} to "
            f"{segment.calls[-1]!r} one after the other from the same call, so they are no segment of it"
        )
    return members


def _idle(book: Book, index: dict[str, int], members: tuple[int, ...], segment: Segment) -> Idle:
    """Find the units of a segment in the profile."""
    if not (segment.keep or segment.skip):
        return NOTHING_IDLE
    functions, run = book.profile.functions, set(book.functions_of_run(members))
    idle: set[int] = set()
    unknown: list[str] = []
    for unit in (*segment.keep, *segment.skip):
        key, function = split_key(unit)
        if unit in index:
            key, function = unit, ""
        inside = run.intersection(book.functions_of(index[key])) if key in index else ()
        if function:
            own = {f for f in inside if functions.call[f] == index[key] and functions.key(f) == function}
        else:
            own = {f for f in inside if not is_free(book, f)}
        if not own:
            unknown.append(unit)
        idle |= own
    if unknown:
        raise NotApplicable(
            f"the segment of {segment.calls[0]!r} keeps or skips {', '.join(map(repr, unknown))}, and nothing of that "
            f"name ran in it in the recorded step of {book.profile.model}: take it out, or give the profile that the "
            "plan was made from"
        )
    found = name_idle(book, members, idle)
    alike = sorted(found.keep) == sorted(segment.keep)
    # What no replay comes to needs no name, and may have one.
    if not (alike and set(found.skip) <= set(segment.skip)):
        raise NotApplicable(
            f"the segment of {segment.calls[0]!r} keeps or skips units that the recorded step of {book.profile.model} "
            f"does not have there, or in another way: of the same functions it would keep [{', '.join(found.keep)}] "
            f"and skip [{', '.join(found.skip)}]. Give the profile that the plan was made from, or write these"
        )
    return found
