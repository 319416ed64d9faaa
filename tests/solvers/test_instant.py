from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings

from autockpt.solvers import (
    SOLVERS,
    Call,
    Candidate,
    Infeasible,
    Problem,
    Save,
    Status,
    Step,
    Tensor,
    simulate,
    solve,
)
from autockpt.solvers.common import ordered, trim
from autockpt.solvers.judge import Judge
from autockpt.solvers.plans.articulation import articulation_points
from autockpt.solvers.plans.baselines import sqrt
from autockpt.solvers.plans.blocks import block_chain

from .exhaustive import minimum_bytes, optimum
from .strategies import problems, problems_and_budgets
from .synthetic import Trace, encoder_decoder, transformer

PLENTY = 60.0
HEURISTICS = ("all", "articulation", "block", "chain", "except_last", "none", "speed", "sqrt", "uniform")
KEEP_ALL_IF_IT_FITS = tuple(name for name in SOLVERS if name not in ("all", "always", "except_last", "uniform"))
any_solver = pytest.mark.parametrize("name", tuple(SOLVERS))
heuristic = pytest.mark.parametrize("name", HEURISTICS)


def row_of_blocks(saved: list[int], kept_between: list[int] | None = None) -> Problem:
    """Calls ``0``, ``1``, … under one parent, each with one op that saves so much; and so much passes on."""
    between = kept_between or [1] * len(saved)
    t = Trace()
    t.open("")
    t.open("body")
    x = t.op(1, seconds=0.0)
    for i, (n_bytes, out_bytes) in enumerate(zip(saved, between, strict=True)):
        t.open(f"body.{i}")
        inner = t.op(n_bytes, x, seconds=1.0, saves_out=True)
        x = t.op(out_bytes, inner, seconds=1.0)
        t.close()
    t.close()
    t.close()
    return t.problem(static_bytes=10)


@any_solver
def test_every_claim_is_what_the_judge_says(name: str) -> None:
    @settings(max_examples=30)
    @given(problems_and_budgets())
    def check(drawn: tuple[Problem, int]) -> None:
        problem, budget_bytes = drawn
        try:
            solution = solve(problem, budget_bytes, solver=name, seconds=PLENTY)
        except Infeasible as error:
            assert error.solver in SOLVERS
            assert error.minimum_bytes > error.budget_bytes == budget_bytes
            assert error.dominated_by
            return
        timeline = simulate(problem, solution.chosen)
        assert solution.peak_bytes == timeline.peak_bytes <= budget_bytes
        assert solution.recompute_seconds == timeline.recompute_seconds
        assert solution.chosen == tuple(sorted(set(solution.chosen)))
        assert solution.solver in SOLVERS
        spans = sorted((problem.candidates[c].start, problem.candidates[c].stop) for c in solution.chosen)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))

    check()


@heuristic
def test_no_heuristic_beats_brute_force_or_calls_itself_optimal_wrongly(name: str) -> None:
    @settings(max_examples=30)
    @given(problems_and_budgets())
    def check(drawn: tuple[Problem, int]) -> None:
        problem, budget_bytes = drawn
        try:
            solution = solve(problem, budget_bytes, solver=name)
        except Infeasible as error:
            assert error.minimum_bytes >= minimum_bytes(problem)
            return
        best = optimum(problem, budget_bytes)
        assert solution.recompute_seconds >= best.recompute_seconds
        if solution.status is Status.OPTIMAL:
            assert solution.recompute_seconds == best.recompute_seconds
        if solution.lower_bound_seconds is not None:
            assert solution.lower_bound_seconds <= best.recompute_seconds

    check()


@any_solver
def test_its_own_minimum_is_reachable(name: str) -> None:
    @settings(max_examples=30)
    @given(problems())
    def check(problem: Problem) -> None:
        try:
            solve(problem, 1, solver=name, seconds=PLENTY)
        except Infeasible as error:
            again = solve(problem, error.minimum_bytes, solver=name, seconds=PLENTY)
            assert again.peak_bytes == error.minimum_bytes

    check()


@pytest.mark.parametrize("name", KEEP_ALL_IF_IT_FITS)
def test_nothing_is_recomputed_if_everything_fits(name: str) -> None:
    @settings(max_examples=30)
    @given(problems())
    def check(problem: Problem) -> None:
        plain = simulate(problem, ()).peak_bytes
        if plain:
            solution = solve(problem, plain, solver=name)
            assert solution.chosen == ()
            assert solution.status is Status.OPTIMAL
            assert solution.gap == 0.0

    check()


def test_auto_is_never_worse_than_any_heuristic() -> None:
    @settings(max_examples=30)
    @given(problems_and_budgets())
    def check(drawn: tuple[Problem, int]) -> None:
        found = []
        for name in HEURISTICS:
            try:
                found.append(solve(*drawn, solver=name).recompute_seconds)
            except Infeasible:
                continue
        if found:
            assert solve(*drawn, seconds=PLENTY).recompute_seconds <= min(found) * (1 + 1e-9)

    check()


def test_infeasible_names_the_step_and_what_stands_there() -> None:
    problem = row_of_blocks([8] * 6)
    with pytest.raises(Infeasible, match=r"stand that no plan changes") as caught:
        solve(problem, 5)
    assert "step '" in caught.value.dominated_by


def test_all_recomputes_each_block_by_itself() -> None:
    problem = transformer(12)
    chosen = [problem.candidates[c].name for c in solve(problem, 10**12, solver="all").chosen]
    assert [name for name in chosen if ".h." in name] == [f"transformer.h.{i}#0" for i in range(12)]


def test_block_recomputes_the_first_blocks_and_no_more_than_needed() -> None:
    problem = row_of_blocks([8] * 12)
    plain = simulate(problem, ()).peak_bytes
    solution = solve(problem, plain - 20, solver="block")
    assert [problem.candidates[c].name for c in solution.chosen] == [f"body.{i}#0" for i in range(len(solution.chosen))]
    assert simulate(problem, solution.chosen[:-1]).peak_bytes > plain - 20


def test_uniform_recomputes_everything_in_runs_of_one_length() -> None:
    problem = row_of_blocks([9] * 12, [6] * 12)
    lengths: set[tuple[int, ...]] = set()
    for budget_bytes in range(20, simulate(problem, ()).peak_bytes):
        try:
            solution = solve(problem, budget_bytes, solver="uniform")
        except Infeasible:
            continue
        runs = [problem.candidates[c].length for c in solution.chosen]
        assert sum(runs) == 12
        assert len(set(runs[:-1])) <= 1
        assert runs[-1] <= runs[0]
        lengths.add(tuple(runs))
    assert len(lengths) > 1


def test_sqrt_makes_about_sqrt_n_runs_of_an_even_chain() -> None:
    problem = row_of_blocks([9] * 12, [3] * 12)
    with pytest.raises(Infeasible) as caught:
        solve(problem, 1, solver="sqrt")
    lowest = solve(problem, caught.value.minimum_bytes, solver="sqrt")
    runs = [problem.candidates[c].length for c in lowest.chosen]
    assert 2 <= len(runs) <= 2 * math.isqrt(12)
    assert max(runs) > 1


def test_sqrt_counts_bytes_and_not_blocks() -> None:
    problem = row_of_blocks([40, 40, 2, 2, 2, 2, 2, 2, 2, 2])
    plans = [[problem.candidates[c].length for c in plan] for plan in sqrt(Judge(problem))]
    assert any(runs[:2] == [1, 1] and max(runs) >= 3 for runs in plans if runs)


def test_articulation_points_are_where_few_bytes_cross() -> None:
    problem = row_of_blocks([30] * 9, [9, 2, 9, 9, 2, 9, 9, 2, 9])
    chain = block_chain(problem)
    names = [problem.calls[chain.elements[i]].name for i in articulation_points(Judge(problem), chain)]
    assert names == ["body.0#0", "body.2#0", "body.5#0", "body.8#0"]


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.4])
def test_looking_inside_blocks_pays(share: float) -> None:
    """The dynamic programme recomputes the cheap bulky calls first; whole blocks cannot."""
    problem = transformer(8)
    budget_bytes = int(share * simulate(problem, ()).peak_bytes)
    costs = {}
    for name in ("block", "sqrt", "articulation", "chain"):
        try:
            costs[name] = solve(problem, budget_bytes, solver=name).recompute_seconds
        except Infeasible:
            costs[name] = math.inf
    assert costs["chain"] < 0.9 * min(costs["block"], costs["sqrt"], costs["articulation"])


@pytest.mark.parametrize(
    "problem",
    [transformer(8), transformer(8, gradient_bytes=40 * 4 * 2**20), encoder_decoder(6)],
    ids=["transformer", "growing-gradients", "encoder-decoder"],
)
@pytest.mark.parametrize("share", [0.8, 0.5, 0.4])
def test_the_dynamic_programme_is_near_the_optimum(share: float, problem: Problem) -> None:
    budget_bytes = int(share * simulate(problem, ()).peak_bytes)
    by_table = solve(problem, budget_bytes, solver="chain")
    bound = solve(problem, budget_bytes, solver="ilp", seconds=PLENTY).lower_bound_seconds
    assert bound is not None
    assert by_table.recompute_seconds <= 1.12 * bound


@any_solver
def test_a_problem_with_nothing_to_decide(name: str) -> None:
    problem = Problem(steps=(Step(name="all there is", base_bytes=7),), calls=())
    assert solve(problem, 7, solver=name).peak_bytes == 7
    with pytest.raises(Infeasible, match="'all there is'"):
        solve(problem, 6, solver=name)


def two_calls(*seconds: float) -> Problem:
    """Two calls that save as much; candidates for the one, for the other, and for both, with their seconds."""
    spans = ((1, 2), (2, 3), (1, 3))[: len(seconds)]
    return Problem(
        steps=(Step(name="forward", base_bytes=10), Step(name="backward", base_bytes=4)),
        calls=(
            Call(name="", parent=-1, stop=3),
            Call(name="a#0", parent=0, stop=2),
            Call(name="b#0", parent=0, stop=3),
        ),
        tensors=tuple(Tensor(bytes=8, free_step=1, saves=(Save(call=call, until=2),)) for call in (1, 2)),
        candidates=tuple(
            Candidate(name="ab", start=start, stop=stop, length=stop - start, recompute_seconds=each)
            for (start, stop), each in zip(spans, seconds, strict=True)
        ),
    )


@pytest.mark.parametrize("seconds", [(1.0, 3.0), (3.0, 1.0)])
def test_of_two_segments_of_which_one_is_enough_the_dearer_one_is_dropped(seconds: tuple[float, float]) -> None:
    problem = two_calls(*seconds)
    assert [simulate(problem, plan).peak_bytes for plan in ((), (0,), (1,), (0, 1))] == [20, 12, 12, 10]
    assert trim(Judge(problem), (0, 1), 12) == (seconds.index(1.0),)


def test_of_plans_that_fit_the_cheapest_comes_first_and_of_others_the_lowest() -> None:
    """Fewer segments count only where plans cost the same."""
    judge = Judge(two_calls(1.0, 1.0, 5.0))
    assert ordered(judge, [(2,), (0, 1)], 10) == [(0, 1), (2,)]
    assert ordered(judge, [(0,), (2,)], 5) == [(2,), (0,)]
    assert ordered(Judge(two_calls(1.0, 1.0, 2.0)), [(0, 1), (2,)], 10) == [(2,), (0, 1)]
