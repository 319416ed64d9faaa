"""Every replay that may be chosen, or as many as there is time for: first what no plan can do without.

always        of each length of runs those that lie side by side, see `Run`              ▒|▒|▒|▒  ▒▒▒|▒▒▒
then          ways to recompute a part of a call                                          menus
at last       all other runs: every eighth, then every fourth, …                          ─▒▒▒─ ──▒▒▒

Where time suffices, what is found and its order do not depend on any of this.
"""

from __future__ import annotations

from ...solvers.deadline import Deadline
from ..index.profile_index import Index
from ..replay_cost.effects import PlannedReplay, replay_of
from .menus import partial_replays
from .runs import runs_of

APART = (0, 4, 2, 6, 1, 5, 3, 7)
"""In which order every eighth of what is not looked at yet has its turn, so that what is missing is spread evenly."""


def find_replays(
    index: Index, deadline: Deadline, *, sparing_products: bool = False
) -> tuple[list[PlannedReplay], tuple[str, ...]]:
    """Find the replays that free something, each once, and say what was left out once time was up.

    Whole runs in the order of `runs_of`, then parts of calls.
    """
    runs = list(runs_of(index))
    whole: dict[int, PlannedReplay | None] = {}

    def look(number: int) -> None:
        members = runs[number].members
        replay = None if index.reason(members) else replay_of(index, members)
        whole[number] = replay if replay is not None and replay.segment.freed_bytes else None
        deadline.tell("%d of %d runs of calls looked at", len(whole), len(runs))

    for number, run in enumerate(runs):
        if run.even:
            look(number)
    able = sorted(each.members[0] for each in whole.values() if each is not None and len(each.members) == 1)
    calls = [call for call in able if not index.is_function(call)]
    parts, complete = partial_replays(index, calls, deadline, sparing_products=sparing_products)
    others = [number for number in range(len(runs)) if number not in whole]
    for number in (each for first in APART for each in others[first :: len(APART)]):
        if deadline.passed:
            break
        look(number)
    found = [whole[number] for number in sorted(whole)]
    every = {(each.members, each.alone): each for each in (*found, *parts) if each is not None}
    return list(every.values()), _left_out(len(whole), len(runs), parts_complete=complete)


def _left_out(looked: int, runs: int, *, parts_complete: bool) -> tuple[str, ...]:
    """Say how far the search came, where it did not come to its end."""
    if parts_complete and looked == runs:
        return ()
    so_far = f"{looked} of {runs} runs of calls and {'all' if parts_complete else 'some'} functions inside calls"
    late = f"time for candidates was up when {so_far} had been looked at, so a plan may be coarser than it could be"
    return (f"{late}: give more seconds",)
