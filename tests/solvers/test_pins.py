"""Required calls bind every solver, and cost what they must and no more."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings

from autockpt.solvers import SOLVERS, Infeasible, InvalidProblem, Problem, Save, Status, simulate, solve
from autockpt.solvers.pins import as_demands, completed, coverable
from autockpt.solvers.plans.blocks import block_chain, widest_candidates

from .exhaustive import judged_plans, minimum_bytes, plans, recomputes_what_is_required
from .strategies import problems_and_plans, required_and_budgets
from .synthetic import transformer

PLENTY = 60.0
any_solver = pytest.mark.parametrize("name", tuple(SOLVERS))


@any_solver
def test_a_solver_recomputes_what_is_required_or_finds_no_plan(name: str) -> None:
    added = 0

    @settings(max_examples=30)
    @given(required_and_budgets())
    def check(drawn: tuple[Problem, int]) -> None:
        nonlocal added
        problem, budget_bytes = drawn
        least = minimum_bytes(problem)
        try:
            solution = solve(problem, budget_bytes, solver=name, seconds=PLENTY)
        except Infeasible as error:
            assert error.minimum_bytes >= max(least, budget_bytes + 1)
            again = solve(problem, error.minimum_bytes, solver=name, seconds=PLENTY)
            assert recomputes_what_is_required(problem, again.chosen)
            return
        added += bool(problem.required)
        assert recomputes_what_is_required(problem, solution.chosen)
        timeline = simulate(problem, solution.chosen)
        assert solution.peak_bytes == timeline.peak_bytes <= budget_bytes
        assert solution.recompute_seconds == timeline.recompute_seconds

    check()
    assert added > 5


@pytest.mark.parametrize("name", ["ilp", "auto"])
def test_the_exact_solvers_find_the_optimum(name: str) -> None:
    costly = 0

    @settings(max_examples=40)
    @given(required_and_budgets())
    def check(drawn: tuple[Problem, int]) -> None:
        nonlocal costly
        problem, budget_bytes = drawn
        fitting = [seconds for _, peak_bytes, seconds in judged_plans(problem) if peak_bytes <= budget_bytes]
        if not fitting:
            with pytest.raises(Infeasible) as caught:
                solve(problem, budget_bytes, solver=name, seconds=PLENTY)
            assert caught.value.minimum_bytes == minimum_bytes(problem)
            return
        solution = solve(problem, budget_bytes, solver=name, seconds=PLENTY)
        assert solution.recompute_seconds == pytest.approx(min(fitting), rel=1e-9)
        assert solution.status is Status.OPTIMAL
        costly += min(fitting) > 0

    check()
    assert costly > 8


@any_solver
def test_a_budget_far_above_everything_frees_from_nothing(name: str) -> None:
    problem = dataclasses.replace(transformer(2), required=(_call(transformer(2), "transformer.h.1.mlp#0"),))
    assert recomputes_what_is_required(problem, solve(problem, 10**15, solver=name).chosen)


@any_solver
def test_a_budget_near_the_largest_integer_frees_from_nothing(name: str) -> None:
    """Two tensors above such a budget had a sum that wrapped around to below it."""
    problem = transformer(4)
    required = tuple(_call(problem, f"transformer.h.{i}#0") for i in (1, 3))
    problem = dataclasses.replace(problem, required=required)
    assert recomputes_what_is_required(problem, solve(problem, 2**62, solver=name).chosen)


def test_an_inner_requirement_leaves_the_block_chain_alone() -> None:
    problem = transformer(6)
    required = dataclasses.replace(problem, required=(_call(problem, "transformer.h.3.attn#0"),))
    assert block_chain(as_demands(required)).elements == block_chain(problem).elements


def test_nothing_but_what_is_required_is_added_to_a_plan_of_none() -> None:
    problem = transformer(6)
    required = tuple(_call(problem, f"transformer.h.{i}#0") for i in (1, 4))
    problem = dataclasses.replace(problem, required=required)
    solution = solve(problem, 10**12, solver="none")
    assert [problem.candidates[c].start for c in solution.chosen] == list(required)


def test_the_optimum_of_a_model_is_proven_as_it_is_without_requirements() -> None:
    """The tensors that stand for demands must not drown the others in a solver's tolerances."""
    problem = transformer(6)
    budget_bytes = simulate(problem, ()).peak_bytes * 7 // 10
    required = tuple(_call(problem, f"transformer.h.{i}.attn#0") for i in range(6))
    bound = dataclasses.replace(problem, required=required)
    free, pinned = (solve(one, budget_bytes, solver="ilp", seconds=PLENTY) for one in (problem, bound))
    assert recomputes_what_is_required(bound, pinned.chosen)
    assert not recomputes_what_is_required(bound, free.chosen)
    assert pinned.recompute_seconds > free.recompute_seconds
    assert free.gap is not None and pinned.gap is not None
    assert pinned.gap <= max(free.gap, 0.02)


def test_requirements_that_no_plan_meets_are_refused() -> None:
    problem = dataclasses.replace(transformer(2), candidates=(), required=(1,))
    assert not coverable(problem, (1,))
    with pytest.raises(InvalidProblem, match="recompute all of the required calls: transformer#0"):
        solve(problem, 10**9)


@settings(max_examples=40)
@given(problems_and_plans())
def test_completing_a_plan_replaces_as_little_as_possible(drawn: tuple[Problem, tuple[int, ...]]) -> None:
    problem, plan = drawn
    covered = {call for c in problem.candidates for call in range(c.start, c.stop)}
    for call in covered:
        required = dataclasses.replace(problem, required=(call,))
        [whole] = completed(as_demands(required), [plan])
        assert recomputes_what_is_required(required, whole)
        spans = [(problem.candidates[c].start, problem.candidates[c].stop) for c in whole]
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
        lost = len(set(plan) - set(whole))
        assert lost == min(len(set(plan) - set(other)) for other in plans(required)), "more replaced than needed"
        usable = {*plan, *widest_candidates(problem).values()}
        others = [each for each in plans(required) if usable.issuperset(each) and len(set(plan) - set(each)) == lost]
        added, least = added_seconds(problem, plan, whole), min(added_seconds(problem, plan, each) for each in others)
        assert added == pytest.approx(least), "more seconds added than needed"


def added_seconds(problem: Problem, plan: tuple[int, ...], whole: tuple[int, ...]) -> float:
    return sum(problem.candidates[c].recompute_seconds for c in set(whole) - set(plan))


@settings(max_examples=40)
@given(problems_and_plans())
def test_a_demand_changes_no_level_where_it_is_met(drawn: tuple[Problem, tuple[int, ...]]) -> None:
    problem, plan = drawn
    for call in range(1, len(problem.calls)):
        required = dataclasses.replace(problem, required=(call,))
        if not coverable(required, (call,)):
            continue
        stated = as_demands(required)
        levels, plain = simulate(stated, plan), simulate(problem, plan)
        if recomputes_what_is_required(required, plan):
            assert (levels.level_bytes, levels.recompute_seconds) == (plain.level_bytes, plain.recompute_seconds)
        else:
            highest = max(simulate(problem, other).peak_bytes for other in plans(required))
            assert min(levels.level_bytes) > highest
        sizes = [t.bytes for t in problem.tensors] + [a.bytes for c in problem.candidates for a in c.additions]
        (added,) = (t for t in stated.tensors if t.demand)
        assert added.bytes % (math.gcd(*sizes) or 1) == 0
        assert added.saves == (Save(call=call, until=len(problem.steps)),)


def _call(problem: Problem, name: str) -> int:
    return next(i for i, call in enumerate(problem.calls) if call.name == name)
