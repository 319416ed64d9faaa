"""Every replay that may be chosen, or as many as there is time for: first what no plan can do without.

always        of each length of runs those that lie side by side, see `Run`              ▒|▒|▒|▒  ▒▒▒|▒▒▒
then          ways to recompute a part of a call                                          menus
at last       all other runs: every eighth, then every fourth, …                          ─▒▒▒─ ──▒▒▒

Where time suffices, what is found and its order do not depend on any of this.
"""

from __future__ import annotations

from ..._data.errors import NotApplicable
from ..._data.offload import Offload
from ..._data.profile import Profile
from ...solvers.deadline import NEVER, Deadline
from ...solvers.plans.baselines import SPARING
from ..index.profile_index import Index
from ..moves.road import Road
from ..replay_cost.effects import PlannedReplay, replay_of
from . import Candidates
from .menus import partial_replays
from .moves import moves_of, road_of
from .runs import runs_of

NONE_ALIKE = (
    "no boundary was seen to be the same on several ranks, so none waits in parts (offload='shard'): ranks compare "
    "theirs in the training itself, under tensor parallelism"
)

APART = (0, 4, 2, 6, 1, 5, 3, 7)
"""In which order every eighth of what is not looked at yet has its turn, so that what is missing is spread evenly."""


def find_candidates(
    profile: Profile, *, deadline: Deadline = NEVER, offload: Offload | None = None, solver: str = "auto"
) -> Candidates:
    """Find everything in a profile that may be recomputed, and state it as a problem.

    Whole calls at every depth, runs of consecutive sibling calls, and calls of which some functions are kept or
    skipped; around the blocks torch functions are siblings too. Where tensors may wait elsewhere, the same again with
    boundaries that do, and calls whose saved tensors do. O(candidates × calls and tensors inside).

    Args:
        profile: the recorded step.
        deadline: once it has passed, what is left out are lengths of runs, then ways to recompute a part of a call;
            single calls, and a few runs of each length, are always there. `Candidates.notes` say so.
        offload: where tensors may wait off the device; None where they stay.
        solver: who will choose. For those of `SPARING` no part of a call that is recomputed multiplies anything.

    Raises:
        NotApplicable: the step has no backward.
    """
    if profile.ticks <= profile.forward_ticks:
        raise NotApplicable(
            f"the recorded step of {profile.model} ends with forward: without a backward there is nothing to recompute "
            "for. Record a step whose loss requires gradients"
        )
    deadline.tell("the recorded step is laid out")
    index = Index(profile)
    found, notes = _find_replays(index, deadline, sparing_products=solver in SPARING)
    road: Road | None = None
    if offload is not None:
        road = road_of(profile, offload)
        moves = sorted(moves_of(index, found, offload, road), key=lambda each: each.segment.until is not None)
        notes = (*notes, NONE_ALIKE) if offload.is_shard and not moves else notes
        found += moves
    saving = (call for call in index.call_nodes[1:] if index.saves_of((call,)))
    refused = tuple((call, reason) for call in saving if (reason := index.reason((call,))))
    deadline.tell("%d candidates are stated as a problem", len(found))
    return Candidates.of(index, found, refused=refused, notes=notes, offload=offload, road=road)


def _find_replays(
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
