"""From a profile to a problem: what may be recomputed, what that holds, restores and costs. No torch.

A profile is laid out as an `Index`; each of the `runs` of calls becomes a `Replay` (`effects`), and calls of several
functions become those of their `menus` too; `problem` states them all for a solver. Open `effects` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..._data.errors import NotApplicable
from ..._data.profile import Profile
from ...solvers.problem import Problem
from .effects import Replay, replay_of
from .menus import partial_replays
from .problem import state_problem
from .profile_index import Index
from .runs import runs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A problem, and what each of its candidates means.

    Attributes:
        index: the recorded step; calls of the problem are its nodes.
        problem: what the solver sees.
        replays: for each candidate of the problem, what it runs again.
        refused: module calls that save something but cannot be replayed exactly, with the reason.
        edges: tick of the profile at which each step of the problem begins; that of an optimizer comes after them.
        tensors: for each tensor of the problem, its index in the profile.
    """

    index: Index
    problem: Problem
    replays: tuple[Replay, ...]
    refused: tuple[tuple[int, str], ...]
    edges: tuple[int, ...]
    tensors: tuple[int, ...]

    @classmethod
    def of(cls, index: Index, replays: Iterable[Replay], *, refused: tuple[tuple[int, str], ...] = ()) -> Candidates:
        """State replays as a problem."""
        replays = tuple(replays)
        problem, edges, tensors = state_problem(index, replays)
        return cls(index=index, problem=problem, replays=replays, refused=refused, edges=edges, tensors=tensors)


def find_candidates(profile: Profile) -> Candidates:
    """Find everything in a profile that may be recomputed, and state it as a problem.

    Whole calls at every depth, runs of consecutive sibling calls, and calls of which some functions are kept or
    skipped; around the blocks torch functions are siblings too. O(candidates × calls and tensors inside).

    Raises:
        NotApplicable: the step has no backward.
    """
    if profile.ticks <= profile.forward_ticks:
        raise NotApplicable(
            f"the recorded step of {profile.model} ends with forward: without a backward there is nothing to recompute "
            "for. Record a step whose loss requires gradients"
        )
    index = Index(profile)
    whole = (replay_of(index, members) for members in runs_of(index) if not index.reason(members))
    found = [replay for replay in whole if replay is not None and replay.segment.freed_bytes]
    able = sorted(each.members[0] for each in found if len(each.members) == 1)
    found += partial_replays(index, [call for call in able if not index.is_function(call)])
    saving = (call for call in index.call_nodes[1:] if index.saves_of((call,)))
    refused = tuple((call, reason) for call in saving if (reason := index.reason((call,))))
    return Candidates.of(index, {(replay.members, replay.alone): replay for replay in found}.values(), refused=refused)
