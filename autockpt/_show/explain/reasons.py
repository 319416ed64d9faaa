"""Why a plan keeps a call: said where the plan or the judge backs it."""

from __future__ import annotations

from collections.abc import Sequence

from ..._choose.candidates import Candidates
from ..._choose.candidates.effects import Replay, replay_of
from ..._choose.pins import matches
from ..._data.plan import Plan
from ...solvers.simulate import simulate

CLEARLY = 1.05
"""Seconds for a byte that differ by a smaller factor say nothing."""

REASONS = {
    "chosen": "a segment of the plan",
    "pinned": "asked for by keep or recompute",
    "inside": "inside a segment",
    "read": "inside a segment, whose replay reads its result",
    "not read": "inside a segment, whose replay does without its result",
    "refused": "cannot be replayed exactly, see below",
    "frees nothing": "what it saves would be held all the same",
    "no lower peak": "recomputing it as well would not lower the predicted peak",
    "costs more": "the budget is met, and it costs more seconds for each byte that it frees than every segment chosen",
    "not needed": "the budget is met without it",
    "too costly": "recomputing it as well would exceed the recompute overhead asked for",
    "not chosen": "the plan does not name it",
}
"""Reasons for a decision, and what each of them means."""


class Why:
    """Why a call that lies in no segment is kept."""

    def __init__(self, planned: Candidates, plan: Plan) -> None:
        self._index, self._plan, self._replays = planned.index, plan, planned.replays
        self._calls = planned.index.profile.calls
        self._refused = {refusal.call for refusal in plan.refused}
        self._dearest = max(
            (
                each.segment.recompute_seconds / each.segment.freed_bytes
                for each in self._replays
                if each.segment.freed_bytes
            ),
            default=0.0,
        )

    def kept(self, calls: Sequence[int]) -> dict[int, str]:
        """Return a key of `REASONS` for each of the calls."""
        found = {call: self._named(call) for call in calls}
        replays = {call: replay_of(self._index, (self._index.call_nodes[call],)) for call in calls if not found[call]}
        could = {call: replay for call, replay in replays.items() if replay is not None and replay.segment.freed_bytes}
        lower = self._lowering(list(could.values()))
        for call in replays:
            replay = could.get(call)
            if replay is None:
                found[call] = "frees nothing"
            else:
                found[call] = self._beside(replay) if replay in lower else "no lower peak"
        return found

    def _named(self, call: int) -> str:
        """What the plan itself says about a call."""
        around = call
        while around >= 0:  # what is pinned is kept with all that lies in it
            if any(matches(self._calls[around], pattern) for pattern in self._plan.pinned_keep):
                return "pinned"
            around = self._calls[around].parent
        return "refused" if self._calls[call].key in self._refused else ""

    def _lowering(self, replays: list[Replay]) -> list[Replay]:
        """Those that lower the plan's peak when they are recomputed as well, each by itself."""
        if not replays:
            return []
        problem = Candidates.of(self._index, [*self._replays, *replays]).problem
        planned = range(len(self._replays))
        peak_bytes = simulate(problem, planned).peak_bytes
        return [
            replay
            for i, replay in enumerate(replays, len(planned))
            if simulate(problem, [*planned, i]).peak_bytes < peak_bytes
        ]

    def _beside(self, replay: Replay) -> str:
        """Why a plan does without what would lower its peak."""
        goal, plan = self._plan.goal, self._plan
        if goal is not None and goal.max_overhead is not None:
            most_seconds = goal.max_overhead * plan.plain_seconds
            return (
                "too costly"
                if plan.recompute_seconds + replay.segment.recompute_seconds > most_seconds
                else "not chosen"
            )
        if plan.budget_bytes is None or (goal is not None and goal.budget_bytes is None):
            return "not chosen"
        dearer = replay.segment.recompute_seconds > CLEARLY * self._dearest * replay.segment.freed_bytes
        return "costs more" if self._replays and dearer else "not needed"
