"""A plan for compiled code: what runs again in each joint graph, found by the same solvers, held to what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from ..solvers import least_peak, solve
from ..solvers.deadline import Deadline
from ..solvers.errors import Infeasible
from ..solvers.units import format_bytes
from .cut import outcome, signature
from .problem import state
from .reading import Links, Traced, read
from .step import JointStep, levels

ATTEMPTS = 3
"""So often is a plan made anew, for a lower budget, where what comes out of torch's partitioner stands above it."""

MOST_NAMED = 4
"""So many modules are named where a plan is told in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlan:
    """What runs again in the joint graphs of a compiled step.

    Attributes:
        again: by the signature of a joint graph, the places among its nodes of the operators that run again.
        peak_bytes: predicted peak of the whole step.
        plain_bytes: that of the step if nothing ran again.
        recompute_seconds: of what runs again, as a roofline says.
        plain_seconds: of forward, likewise.
        modules: qualified names of modules, with the seconds of what runs again in each, most first.
        notes: what went wrong on the way, in words.
    """

    again: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    peak_bytes: int = 0
    plain_bytes: int = 0
    recompute_seconds: float = 0.0
    plain_seconds: float = 0.0
    modules: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Share of forward that runs again, by seconds."""
        return self.recompute_seconds / self.plain_seconds if self.plain_seconds else 0.0

    def __str__(self) -> str:
        operators, graphs = sum(map(len, self.again.values())), len(self.again)
        where = ", ".join(name or "the model" for name, _ in self.modules[:MOST_NAMED])
        lines = [
            f"{format_bytes(self.peak_bytes)} at the peak of the compiled step, predicted; "
            f"{format_bytes(self.plain_bytes)} where nothing runs again",
            f"{operators} operators run again, in {graphs} {'graph' if graphs == 1 else 'graphs'}: {self.share:.1%} of "
            "forward by a roofline" + (f", most in {where}" if where else ""),
            *(f"note that {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def make_plan(
    graphs: Sequence[Traced],
    links: Links,
    budget_bytes: int | None,
    *,
    static_bytes: int = 0,
    step_bytes: int = 0,
    solver: str = "auto",
    seconds: float = 3.0,
) -> CompiledPlan:
    """Choose what runs again so that the predicted peak of a compiled step stays within a budget.

    Args:
        graphs: its joint graphs.
        links: what one hands to a later one.
        budget_bytes: highest peak of the whole step; None for the lowest that can be reached.
        static_bytes: what stands before and after the step.
        step_bytes: what the optimizer's step takes for a moment, beside all gradients.
        solver: a name in `autockpt.solvers.SOLVERS`.
        seconds: how long the solver may search.

    Raises:
        Infeasible: no plan meets the budget.
    """
    step = read(graphs, links, step_bytes=step_bytes)
    if budget_bytes is None:
        return _lowest(step, graphs, static_bytes, solver, seconds)
    # While the first step compiles, what crosses graphs stands until its end.
    first = replace(step, outputs=step.outputs | step.crossing, crossing=frozenset())
    try:
        return _within(first, step, graphs, budget_bytes, static_bytes, solver, seconds)
    except Infeasible:
        if not step.crossing:
            raise
        return replace(
            _within(step, step, graphs, budget_bytes, static_bytes, solver, seconds),
            notes=("the step that compiles may stand above the budget by what one graph hands to the next",),
        )


def _within(
    counted: JointStep,
    step: JointStep,
    graphs: Sequence[Traced],
    budget_bytes: int,
    static_bytes: int,
    solver: str,
    seconds: float,
) -> CompiledPlan:
    """Return the cheapest plan that holds a step to a budget as it is `counted`; its figures are those of the step."""
    stated = state(counted, static_bytes=static_bytes, deadline=Deadline.after(seconds))
    asked_bytes, over_bytes = budget_bytes, 0
    for _ in range(ATTEMPTS):
        solution = solve(stated.problem, asked_bytes, solver=solver, seconds=seconds)
        again = _what_comes_out(step, graphs, stated.chosen(solution.chosen))
        over_bytes = static_bytes + max(levels(counted, again), default=0) - budget_bytes
        if over_bytes <= 0:
            return _plan(step, graphs, again, static_bytes, solution.notes + stated.notes)
        asked_bytes = max(asked_bytes - over_bytes, 1)
    raise Infeasible(
        budget_bytes=budget_bytes,
        minimum_bytes=budget_bytes + over_bytes,
        solver=solver,
        dominated_by="what torch's partitioner made of the plan",
    )


def _lowest(step: JointStep, graphs: Sequence[Traced], static_bytes: int, solver: str, seconds: float) -> CompiledPlan:
    """Return the plan of the lowest peak."""
    stated = state(step, static_bytes=static_bytes, deadline=Deadline.after(seconds))
    solution = least_peak(stated.problem, solver=solver, seconds=seconds)
    again = _what_comes_out(step, graphs, stated.chosen(solution.chosen))
    return _plan(step, graphs, again, static_bytes, solution.notes + stated.notes)


def _what_comes_out(step: JointStep, graphs: Sequence[Traced], again: frozenset[int]) -> frozenset[int]:
    """Return which operators run again once torch's partitioner has cut each graph."""
    index = {(each.graph, each.place): i for i, each in enumerate(step.forward)}
    places = _by_graph(step, graphs, again)
    cuts = {traced.joint: outcome(traced, places[traced.joint]) for traced in graphs}
    found = ((number, place) for number, traced in enumerate(graphs) for place in cuts[traced.joint])
    return frozenset(index[each] for each in found if each in index)


def _by_graph(step: JointStep, graphs: Sequence[Traced], again: frozenset[int]) -> dict[fx.GraphModule, set[int]]:
    """Return the places of what runs again by graph: all calls of one graph are cut alike."""
    places: dict[fx.GraphModule, set[int]] = {traced.joint: set() for traced in graphs}
    for i in again:
        places[graphs[step.forward[i].graph].joint].add(step.forward[i].place)
    return places


def _plan(
    step: JointStep, graphs: Sequence[Traced], again: frozenset[int], static_bytes: int, notes: tuple[str, ...]
) -> CompiledPlan:
    places = _by_graph(step, graphs, again)
    return CompiledPlan(
        again={signature(joint): tuple(sorted(found)) for joint, found in places.items()},
        peak_bytes=static_bytes + max(levels(step, again), default=0),
        plain_bytes=static_bytes + max(levels(step, ()), default=0),
        recompute_seconds=sum(step.forward[i].seconds for i in again),
        plain_seconds=step.seconds,
        modules=tuple(sorted(_by_module(step, again).items(), key=lambda each: -each[1])),
        notes=notes,
    )


def _by_module(step: JointStep, again: frozenset[int]) -> dict[str, float]:
    """Return the seconds of what runs again, by module."""
    found: dict[str, float] = {}
    for i in again:
        found[step.forward[i].module] = found.get(step.forward[i].module, 0.0) + step.forward[i].seconds
    return found
