"""A plan for compiled code: what runs again in each joint graph, found by the same solvers, held to what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from .._data.compiled_plan import CompiledPlan, JointGraph
from ..solvers import least_peak, solve
from ..solvers.deadline import Deadline
from ..solvers.errors import Infeasible
from .cut import look_of, outcome
from .problem import Stated, state
from .reading import Links, Traced, read
from .step import Fused, JointStep, fused_step, levels

ATTEMPTS = 3
"""So often is a plan made anew, for a lower budget, where what comes out of torch's partitioner stands above it."""


LOWERINGS = 3
"""So often at most is the code of a step generated while its plan is made, and as often in search of the lowest."""

MARGIN = 0.01
"""By this share of the budget for the step less is asked for than would do, once code was above it."""

CLOSE = 0.03
"""The lowest plan is held to a budget by what comes out where the judge says that it is above by at most this share."""

NEAR = 0.1
"""The lowest peak in code is also looked for among plans that stand higher by this share, by what graphs say."""

CHEAPER = 0.03
"""A plan whose code keeps to a budget is taken unless another promises to run less again by this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """What generated code holds, in bytes above what stood before the step.

    Attributes:
        peak_bytes: at the peak of a step.
        first_bytes: at that of the step that compiles.
        fused: what became of the operators in it.
    """

    peak_bytes: int
    first_bytes: int
    fused: Fused = field(default_factory=Fused)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """A compiled step that can be planned for any budget.

    Attributes:
        step: the step.
        counted: the step as plans are held to it: that of the first one, in which what crosses graphs stands until the
            end, or the same.
        stated: `counted` as a problem.
        graphs: its joint graphs.
        looks: each as a plan tells it, with nothing that runs again.
        static_bytes: what stands before and after it.
        solver: a name in `autockpt.solvers.SOLVERS`.
        seconds: how long the solver may search, for each plan.
    """

    step: JointStep
    counted: JointStep
    stated: Stated
    graphs: Sequence[Traced]
    looks: tuple[JointGraph, ...]
    static_bytes: int
    solver: str
    seconds: float

    @property
    def names(self) -> tuple[str, ...]:
        """Signature of the graph of each call."""
        return tuple(each.signature for each in self.looks)


def prepare(
    graphs: Sequence[Traced],
    links: Links,
    *,
    static_bytes: int = 0,
    step_bytes: int = 0,
    room_bytes: int | None = None,
    solver: str = "auto",
    seconds: float = 3.0,
    first: bool = True,
) -> PreparedStep:
    """Prepare a compiled step for plans.

    Args:
        graphs: its joint graphs.
        links: what one hands to a later one.
        static_bytes: what stands before and after the step.
        step_bytes: what the optimizer's step takes for a moment, beside all gradients.
        room_bytes: as `read` takes it.
        solver: a name in `autockpt.solvers.SOLVERS`.
        seconds: how long the solver may search, for each plan.
        first: whether plans are held to the step that compiles, too: what crosses graphs stands until its end.
    """
    step = read(graphs, links, step_bytes=step_bytes, room_bytes=room_bytes)
    counted = replace(step, outputs=step.outputs | step.crossing, crossing=frozenset()) if first else step
    return PreparedStep(
        step=step,
        counted=counted,
        stated=state(counted, static_bytes=static_bytes, deadline=Deadline.after(seconds)),
        graphs=graphs,
        looks=tuple(map(look_of, graphs)),
        static_bytes=static_bytes,
        solver=solver,
        seconds=seconds,
    )


def make_plan(graphs: Sequence[Traced], links: Links, budget_bytes: int | None, **more: Any) -> CompiledPlan:
    """Choose what runs again so that the predicted peak of a compiled step stays within a budget.

    Args:
        graphs: its joint graphs.
        links: what one hands to a later one.
        budget_bytes: highest peak of the whole step; None for the lowest that can be reached.
        more: as `prepare` takes it.

    Raises:
        Infeasible: no plan meets the budget.
    """
    if budget_bytes is None:
        return lowest_plan(prepare(graphs, links, first=False, **more))
    prepared = prepare(graphs, links, **more)
    try:
        return plan_within(prepared, budget_bytes)
    except Infeasible:
        if not prepared.step.crossing:
            raise
        note = "the step that compiles may stand above the budget by what one graph hands to the next"
        plan = plan_within(prepare(graphs, links, first=False, **more), budget_bytes)
        return msgspec.structs.replace(plan, notes=(note,))


def plan_within(prepared: PreparedStep, budget_bytes: int) -> CompiledPlan:
    """Return the cheapest plan that holds a step to a budget, as it is counted; its figures are those of the step.

    Raises:
        Infeasible: no plan meets the budget.
    """
    if prepared.static_bytes + max(levels(prepared.counted, ()), default=0) <= budget_bytes:
        idle = _what_comes_out(prepared, frozenset())
        if prepared.static_bytes + max(levels(prepared.counted, idle), default=0) <= budget_bytes:
            return _plan(prepared, idle, (), budget_bytes)
    asked_bytes, over_bytes, highest = budget_bytes, 0, ""
    for _ in range(ATTEMPTS):
        try:
            solution = solve(prepared.stated.problem, asked_bytes, solver=prepared.solver, seconds=prepared.seconds)
        except Infeasible as error:
            if error.minimum_bytes - budget_bytes > CLOSE * (budget_bytes - prepared.static_bytes):
                raise
            # What comes out may hold a little less than the judge says: the lowest plan decides.
            solution = least_peak(prepared.stated.problem, solver=prepared.solver, seconds=prepared.seconds)
            highest = error.dominated_by
        again = _what_comes_out(prepared, prepared.stated.chosen(solution.chosen))
        over_bytes = prepared.static_bytes + max(levels(prepared.counted, again), default=0) - budget_bytes
        if over_bytes <= 0:
            return _plan(prepared, again, solution.notes, budget_bytes)
        if highest:
            break
        asked_bytes = max(asked_bytes - over_bytes, 1)
    raise Infeasible(
        budget_bytes=budget_bytes,
        minimum_bytes=budget_bytes + over_bytes,
        solver=prepared.solver,
        dominated_by=highest or "what torch's partitioner made of the plan",
    )


def lowest_plan(prepared: PreparedStep) -> CompiledPlan:
    """Return the plan of the lowest peak."""
    solution = least_peak(prepared.stated.problem, solver=prepared.solver, seconds=prepared.seconds)
    again = _what_comes_out(prepared, prepared.stated.chosen(solution.chosen))
    return _plan(prepared, again, solution.notes)


def plan_by_code(
    prepared: PreparedStep, read: Callable[[CompiledPlan], Lowered], budget_bytes: int | None
) -> CompiledPlan:
    """Make plans until the code generated for one keeps a step to a budget, and return the cheapest that does.

    What graphs say may mislead: code fuses, and holds less. So the code of the lowest plan by graphs is looked at
    first, whatever the budget, and later plans are made for graphs without what had no memory in it.

    Args:
        prepared: the step.
        read: says what the code holds that is generated for a plan.
        budget_bytes: highest peak of the whole step, the first one too; None for the lowest that is found.

    Returns:
        The plan, with the peak that its code has.

    Raises:
        Infeasible: the code of no plan that was tried keeps to the budget, the lowest one that is found among them.
    """
    generated = _Generated(prepared, read)
    if budget_bytes is None:
        _find_lowest(generated)
        return min(generated.found, key=lambda each: each[0])[1]
    _search(generated, budget_bytes)
    if not generated.within(budget_bytes):  # more code than for others: what is refused is above the true lowest
        _find_lowest(generated)
    within = generated.within(budget_bytes)
    if not within:
        raise Infeasible(
            budget_bytes=budget_bytes,
            minimum_bytes=min(first_bytes for first_bytes, _ in generated.found),
            solver=prepared.solver,
            dominated_by="what the generated code allocates",
        )
    return min(within, key=lambda plan: (plan.recompute_seconds, plan.peak_bytes))


class _Generated:
    """The plans of a step for which code was generated.

    Args:
        prepared: the step.
        read: says what the code holds that is generated for a plan.

    Attributes:
        prepared: the step.
        found: each plan, with the peak that its code has, and before it the peak of its first step.
    """

    def __init__(self, prepared: PreparedStep, read: Callable[[CompiledPlan], Lowered]) -> None:
        self.prepared, self._read = prepared, read
        self.found: list[tuple[int, CompiledPlan]] = []
        self._codes: dict[tuple[JointGraph, ...], Lowered] = {}

    def look(self, plan: CompiledPlan) -> Lowered:
        """Generate the code of a plan, if that was not done, and return what it holds."""
        if plan.graphs not in self._codes:
            code, static_bytes = self._read(plan), self.prepared.static_bytes
            first_bytes = static_bytes + code.first_bytes
            tried_bytes = (*(each for each, _ in self.found), first_bytes)
            known = msgspec.structs.replace(plan, peak_bytes=static_bytes + code.peak_bytes, tried_bytes=tried_bytes)
            self.found.append((first_bytes, known))
            self._codes[plan.graphs] = code
        return self._codes[plan.graphs]

    def has(self, plan: CompiledPlan) -> bool:
        """Whether the code of such a plan was generated."""
        return plan.graphs in self._codes

    def within(self, budget_bytes: int) -> list[CompiledPlan]:
        """Return the plans whose code keeps to a budget."""
        return [plan for first_bytes, plan in self.found if first_bytes <= budget_bytes]


def _find_lowest(generated: _Generated) -> None:
    """Generate the code of ever lower plans, each made for graphs as the code of those before it was, and torch's own.

    Which plans these are does not depend on what else was looked at: the lowest peak is the same for every budget.
    """
    static_bytes, seen, plan = generated.prepared.static_bytes, Fused(), lowest_plan(generated.prepared)
    looked: list[CompiledPlan] = []
    while len(looked) < LOWERINGS and all(plan.graphs != each.graphs for each in looked):
        looked.append(plan)
        seen |= generated.look(plan).fused
        prepared = _as_seen(generated.prepared, seen)
        plan = lowest_plan(prepared)
        if any(plan.graphs == each.graphs for each in looked):  # one that runs less again may be lower in code
            plan = _made(prepared, int(plan.peak_bytes + NEAR * (plan.peak_bytes - static_bytes)))
    generated.look(_plan_of_torch(generated.prepared))


def _search(generated: _Generated, budget_bytes: int) -> None:
    """Generate the code of plans for a budget: for less after one that is above it, for more where some is left."""
    static_bytes = generated.prepared.static_bytes
    most_bytes, seen, plan = budget_bytes - static_bytes, Fused(), lowest_plan(generated.prepared)
    for _ in range(LOWERINGS):
        code = generated.look(plan)
        if not any(plan.again.values()):
            return
        over_bytes, seen = static_bytes + code.first_bytes - budget_bytes, seen | code.fused
        prepared = _as_seen(generated.prepared, seen)
        spare_bytes = MARGIN * most_bytes if over_bytes > 0 else 0
        plan = _made(prepared, max(int(_peak_bytes(prepared, plan) - over_bytes - spare_bytes), 1))
        cheapest = min((each.recompute_seconds for each in generated.within(budget_bytes)), default=math.inf)
        if generated.has(plan) or plan.recompute_seconds > (1 - CHEAPER) * cheapest:
            return


def _as_seen(prepared: PreparedStep, seen: Fused) -> PreparedStep:
    """Return a step as its code runs it, as far as that was seen, to be planned for."""
    if seen == Fused():
        return prepared
    step, counted = (fused_step(each, prepared.names, seen) for each in (prepared.step, prepared.counted))
    deadline = Deadline.after(prepared.seconds)
    stated = state(counted, static_bytes=prepared.static_bytes, deadline=deadline)
    return replace(prepared, step=step, counted=counted, stated=stated)


def _peak_bytes(prepared: PreparedStep, plan: CompiledPlan) -> int:
    """Return the peak of a plan as a step counts it."""
    index = {(each.graph, each.place): i for i, each in enumerate(prepared.step.forward)}
    again = (index[number, place] for number, name in enumerate(prepared.names) for place in plan.again[name])
    return prepared.static_bytes + max(levels(prepared.counted, frozenset(again)), default=0)


def _plan_of_torch(prepared: PreparedStep) -> CompiledPlan:
    """Return the plan that torch's own partitioner would take by itself, less what no plan may run again."""
    of_name = {name: outcome(each, None) for name, each in zip(prepared.names, prepared.graphs, strict=True)}
    again = (
        i
        for i, each in enumerate(prepared.step.forward)
        if not each.kept and each.place in of_name[prepared.names[each.graph]]
    )
    return _plan(prepared, _what_comes_out(prepared, frozenset(again)), ())


def _made(prepared: PreparedStep, budget_bytes: int) -> CompiledPlan:
    """Return the plan for a budget; the lowest one where it cannot be held, for code may hold less than its graphs."""
    try:
        return plan_within(prepared, budget_bytes)
    except Infeasible:
        return lowest_plan(prepared)


def _what_comes_out(prepared: PreparedStep, again: frozenset[int]) -> frozenset[int]:
    """Return which operators run again once torch's partitioner has cut each graph."""
    index = {(each.graph, each.place): i for i, each in enumerate(prepared.step.forward)}
    places = _by_graph(prepared, again)
    of_name = dict(zip(prepared.names, prepared.graphs, strict=True))
    cuts = {name: outcome(traced, places[name]) for name, traced in of_name.items()}
    found = ((number, place) for number, name in enumerate(prepared.names) for place in cuts[name])
    return frozenset(index[each] for each in found if each in index)


def _by_graph(prepared: PreparedStep, again: frozenset[int]) -> dict[str, set[int]]:
    """Return the places of what runs again by graph. Graphs that look alike are cut alike, as are calls of one."""
    places: dict[str, set[int]] = {name: set() for name in prepared.names}
    for i in again:
        operator = prepared.step.forward[i]
        places[prepared.names[operator.graph]].add(operator.place)
    return places


def _plan(
    prepared: PreparedStep, again: frozenset[int], notes: tuple[str, ...], budget_bytes: int | None = None
) -> CompiledPlan:
    step, static_bytes = prepared.step, prepared.static_bytes
    places = _by_graph(prepared, again)
    alike = {each.signature: each for each in prepared.looks}
    return CompiledPlan(
        graphs=tuple(msgspec.structs.replace(each, again=tuple(sorted(places[name]))) for name, each in alike.items()),
        peak_bytes=static_bytes + max(levels(step, again), default=0),
        plain_peak_bytes=static_bytes + max(levels(step, ()), default=0),
        recompute_seconds=sum(step.forward[i].seconds for i in again),
        forward_seconds=step.seconds,
        budget_bytes=budget_bytes,
        solver=prepared.solver,
        status="feasible",
        modules=tuple(sorted(_by_module(step, again).items(), key=lambda each: -each[1])),
        notes=notes + prepared.stated.notes,
    )


def _by_module(step: JointStep, again: frozenset[int]) -> dict[str, float]:
    """Return the seconds of what runs again, by module."""
    found: dict[str, float] = {}
    for i in again:
        found[step.forward[i].module] = found.get(step.forward[i].module, 0.0) + step.forward[i].seconds
    return found
