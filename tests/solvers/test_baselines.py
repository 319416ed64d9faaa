"""The baseline `speed`: the first blocks but for what multiplies, as many as the budget asks for."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import Infeasible, Problem, simulate, solve
from autockpt.solvers.judge import Judge
from autockpt.solvers.plans.baselines import speed
from autockpt.solvers.plans.blocks import block_chain

from .strategies import chains_and_budgets
from .synthetic import transformer

BLOCKS = 6


def in_part(problem: Problem, *, seconds: float = 1.0) -> Problem:
    """Let all candidates multiply, and give each block's a partial twin that does not, and restores less."""
    blocks = [c for c in problem.candidates if c.name.startswith("transformer.h.") and c.name.count(".") == 2]
    twins = tuple(
        dataclasses.replace(
            candidate,
            name=f"{candidate.name} in part",
            recompute_seconds=seconds,
            additions=candidate.additions[:1],
            partial=True,
            multiplies=False,
        )
        for candidate in blocks
        if candidate.length == 1
    )
    whole = (dataclasses.replace(candidate, multiplies=True) for candidate in problem.candidates)
    return dataclasses.replace(problem, candidates=(*whole, *twins))


def test_it_takes_the_first_blocks_and_no_more_than_needed() -> None:
    problem = in_part(transformer(BLOCKS))
    plain = simulate(problem, ()).peak_bytes
    sizes = set()
    for percent in range(50, 100, 5):
        try:
            solution = solve(problem, plain * percent // 100, solver="speed")
        except Infeasible:
            continue
        names = [problem.candidates[c].name for c in solution.chosen]
        assert names == [f"transformer.h.{i}#0 in part" for i in range(len(names))]
        assert simulate(problem, solution.chosen[:-1]).peak_bytes > plain * percent // 100
        sizes.add(len(names))
    assert len(sizes) > 2


def test_times_do_not_matter() -> None:
    """Nor do they where part of a block costs more than all of it."""
    problem = transformer(BLOCKS)
    budget_bytes = simulate(problem, ()).peak_bytes * 8 // 10
    chosen = {solve(in_part(problem, seconds=s), budget_bytes, solver="speed").chosen for s in (0.0, 1e-6, 1e3)}
    assert len(chosen) == 1


def test_its_minimum_is_that_of_all_its_blocks() -> None:
    problem = in_part(transformer(BLOCKS))
    with pytest.raises(Infeasible) as caught:
        solve(problem, 1, solver="speed")
    assert caught.value.solver == "speed"
    assert caught.value.minimum_bytes == min(simulate(problem, plan).peak_bytes for plan in speed(Judge(problem)))


def test_where_everything_multiplies_it_recomputes_nothing() -> None:
    problem = transformer(BLOCKS)
    candidates = tuple(dataclasses.replace(candidate, multiplies=True) for candidate in problem.candidates)
    problem = dataclasses.replace(problem, candidates=candidates)
    plain = simulate(problem, ()).peak_bytes
    assert solve(problem, plain, solver="speed").chosen == ()
    with pytest.raises(Infeasible):
        solve(problem, plain - 1, solver="speed")


def test_other_families_recompute_whole_blocks_all_the_same() -> None:
    problem = transformer(BLOCKS)
    dear = in_part(problem, seconds=1e3)
    assert block_chain(dear).spans == block_chain(problem).spans
    for solver in ("all", "block", "uniform", "sqrt"):
        budget_bytes = simulate(problem, ()).peak_bytes * 8 // 10
        assert solve(dear, budget_bytes, solver=solver) == solve(problem, budget_bytes, solver=solver)


@settings(max_examples=60)
@given(chains_and_budgets(), st.data())
def test_it_takes_what_multiplies_nothing_and_frees_most(drawn: tuple[Problem, int], data: st.DataObject) -> None:
    problem, _ = drawn
    multiplies = data.draw(st.lists(st.booleans(), min_size=len(problem.candidates), max_size=len(problem.candidates)))
    candidates = zip(problem.candidates, multiplies, strict=True)
    problem = dataclasses.replace(
        problem, candidates=tuple(dataclasses.replace(c, multiplies=m) for c, m in candidates)
    )
    plain = simulate(problem, ())

    def freed_bytes(c: int) -> int:
        return plain.peak_bytes - simulate(problem, (c,)).level_bytes[plain.peak_step]

    *_, last = speed(Judge(problem))
    simulate(problem, last)  # which refuses overlaps
    for c in last:
        rivals = [i for i, one in enumerate(problem.candidates) if one.start == problem.candidates[c].start]
        assert not problem.candidates[c].multiplies
        assert 0 < freed_bytes(c) == max(freed_bytes(i) for i in rivals if not multiplies[i])
