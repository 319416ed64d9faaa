"""From a profile to a problem: what may be recomputed, what that holds, restores and costs. No torch.

A profile is laid out as an `Index`; each of the `runs` of calls becomes a `PlannedReplay` (`replay_cost`), and calls of
several functions become those of their `menus` too, as far as time goes (`search`); `problem` states all for a solver.
Open `replay_cost/effects.py` first.

search.py     every replay that may be chosen, as far as there is time
runs.py       runs of sibling calls worth looking at
menus.py      ways to recompute a part of a call
by_hand.py    ways that pins ask for, and that nobody else looks for
moves.py      what may wait off the device, and what that costs
nested.py     runs in parts, and calls of which what is inside is recomputed again
entering.py   the boundary bytes of every run in a row of siblings
problem.py    from replays to a problem
from_plan.py  a plan as candidates
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..._data.hardware.paces import DevicePace, HostPace, paces_of
from ..._data.offload import Offload
from ...solvers.deadline import Deadline
from ...solvers.problem import Problem, Solution, Status
from ..index.profile_index import Index
from ..moves.road import Road
from ..moves.search import Search, with_waits
from ..replay_cost.effects import PlannedReplay
from ..replay_cost.two_clocks import TwoClocks, price, simulate
from .moves import later_ends
from .problem import state_problem


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
        notes: what was left out since time was up.
        offload: where tensors may wait off the device; None where they stay.
        road: the link there, where copies run beside the computing.
    """

    index: Index
    problem: Problem
    replays: tuple[PlannedReplay, ...]
    refused: tuple[tuple[int, str], ...]
    edges: tuple[int, ...]
    tensors: tuple[int, ...]
    notes: tuple[str, ...] = ()
    offload: Offload | None = None
    road: Road | None = None

    @classmethod
    def of(
        cls,
        index: Index,
        replays: Iterable[PlannedReplay],
        *,
        refused: tuple[tuple[int, str], ...] = (),
        notes: tuple[str, ...] = (),
        offload: Offload | None = None,
        road: Road | None = None,
    ) -> Candidates:
        """State replays as a problem; those that move something come last, those beside the computing behind them."""
        replays = tuple(replays)
        problem, edges, tensors = state_problem(index, replays)
        return cls(
            index=index,
            problem=problem,
            replays=replays,
            refused=refused,
            edges=edges,
            tensors=tensors,
            notes=notes,
            offload=offload,
            road=road,
        )

    def like(self, replays: Sequence[PlannedReplay]) -> Candidates:
        """State other candidates of the same step."""
        kept = {name: getattr(self, name) for name in ("refused", "notes", "offload", "road")}
        found = Candidates.of(self.index, replays, **kept)
        return replace(found, problem=replace(found.problem, required=self.problem.required))

    def having(self, more: Iterable[PlannedReplay]) -> Candidates:
        """Return them with more, each once; those that move something stay behind the others."""
        known = {(each.members, each.alone) for each in self.replays}
        added = [each for key, each in {(each.members, each.alone): each for each in more}.items() if key not in known]
        if not added:
            return self
        stay = sum(each.move is None for each in self.replays)
        return self.like([*self.replays[:stay], *added, *self.replays[stay:]])

    def beside(
        self, best: Solution, budget_bytes: int, *, solver: str, deadline: Deadline
    ) -> tuple[Candidates, Solution]:
        """Look for a cheaper plan than the best so far, one that moves tensors beside the computing; see `Search`."""
        search = Search(
            self.road,
            self.replays,
            self.problem,
            state=lambda replays: self.like(replays).problem,
            later=lambda replay: later_ends(self.index, replay, self.offload, self.road),
        )
        replays, found = search.cheaper(best, budget_bytes, solver=solver, deadline=deadline)
        return (self if replays is self.replays else self.like(replays)), found

    def staying(self) -> Candidates:
        """Return those that move nothing: the first of them."""
        kept = [each for each in self.replays if each.move is None]
        return replace(self, offload=None, road=None).like(kept)  # no step is cut for a move

    def judged(self, solution: Solution) -> Solution:
        """Return a choice among them with the seconds that it adds to the step.

        Those are the judge's, and what the device waits for the link; or those of two clocks. That no other choice is
        cheaper was then proven by a price, and is not known of the step.
        """
        planned, plain = self.clocks(solution.chosen), self.clocks(())
        if planned is None or plain is None:
            return with_waits(self.road, self.replays, solution)
        if not solution.chosen:
            return solution
        more = max(planned.step_seconds - plain.step_seconds, 0.0)
        return replace(solution, recompute_seconds=more, status=Status.FEASIBLE, lower_bound_seconds=None)

    @property
    def paces(self) -> tuple[HostPace, DevicePace] | None:
        """How fast host and device are; None for a step with one clock, and where other streams may copy."""
        return paces_of(self.index.profile) if self.offload is None else None

    def clocks(self, chosen: Iterable[int]) -> TwoClocks | None:
        """Return where the time of the step under a choice goes; None for a step with one clock."""
        return self.paces and simulate(self.index, [self.replays[i] for i in chosen], *self.paces)

    def priced(self, share: float) -> Candidates:
        """Return them at other prices: the device's seconds, and this share of the host's; the same for one clock."""
        paces = self.paces
        if paces is None:
            return self
        priced = tuple(
            replace(candidate, recompute_seconds=price(replay, *paces, share))
            for candidate, replay in zip(self.problem.candidates, self.replays, strict=True)
        )
        return replace(self, problem=replace(self.problem, candidates=priced))

    @property
    def all_seconds(self) -> float:
        """What recomputing all of them adds to the step: on two clocks, where it has two."""
        clocks, plain = self.clocks(range(len(self.replays))), self.clocks(())
        if clocks is None or plain is None:
            return sum(replay.segment.recompute_seconds for replay in self.replays)
        return max(clocks.step_seconds - plain.step_seconds, 0.0)

    @property
    def plain_seconds(self) -> float:
        """Seconds of the plain step: as measured; where nothing ran, on two clocks if it has two."""
        profile = self.index.profile
        plain = self.clocks(()) if profile.mode == "fake" else None
        return profile.plain_seconds if plain is None else plain.step_seconds

    def waiting(self) -> Candidates:
        """Return those for whose moves the step waits, and those that move nothing: what comes first."""
        return self.like([each for each in self.replays if each.segment.until is None])
