"""The family of `speed`: marked candidates of the first blocks, as many as the budget asks for, whatever they cost."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import Infeasible, Problem, simulate, solve
from autockpt.solvers.blocks import block_chain
from autockpt.solvers.ledger import Ledger
from autockpt.solvers.speed import PRESET, speed_plans

from .strategies import chains_and_budgets
from .synthetic import transformer

BLOCKS = 6


def with_presets(problem: Problem, *, seconds: float = 1.0, starts: tuple[int, ...] = ()) -> Problem:
    """Mark a cheaper, partial twin of each block's candidate, which leaves part of what it restores undone."""
    blocks = [c for c in problem.candidates if c.name.startswith("transformer.h.") and c.name.count(".") == 2]
    twins = tuple(
        dataclasses.replace(
            candidate,
            name=f"{candidate.name} in part",
            recompute_seconds=seconds,
            additions=candidate.additions[:1],
            partial=True,
            preset=PRESET,
        )
        for candidate in blocks
        if candidate.length == 1 and (not starts or candidate.start in starts)
    )
    return dataclasses.replace(problem, candidates=(*problem.candidates, *twins))


def test_it_takes_the_first_blocks_and_no_more_than_needed() -> None:
    problem = with_presets(transformer(BLOCKS))
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
    """Nor do they where the marked candidates cost more than whole blocks."""
    problem = transformer(BLOCKS)
    budget_bytes = simulate(problem, ()).peak_bytes * 8 // 10
    chosen = {solve(with_presets(problem, seconds=s), budget_bytes, solver="speed").chosen for s in (0.0, 1e-6, 1e3)}
    assert len(chosen) == 1


def test_its_minimum_is_that_of_all_its_blocks() -> None:
    problem = with_presets(transformer(BLOCKS))
    with pytest.raises(Infeasible) as caught:
        solve(problem, 1, solver="speed")
    assert caught.value.solver == "speed"
    assert caught.value.minimum_bytes == min(
        simulate(problem, plan).peak_bytes for plan in speed_plans(Ledger.of(problem))
    )


def test_without_marks_it_recomputes_nothing() -> None:
    problem = transformer(BLOCKS)
    plain = simulate(problem, ()).peak_bytes
    assert solve(problem, plain, solver="speed").chosen == ()
    with pytest.raises(Infeasible):
        solve(problem, plain - 1, solver="speed")


def test_other_families_recompute_whole_blocks_all_the_same() -> None:
    problem = transformer(BLOCKS)
    dear = with_presets(problem, seconds=1e3)
    assert block_chain(dear).spans == block_chain(problem).spans
    for solver in ("all", "block", "uniform", "sqrt"):
        budget_bytes = simulate(problem, ()).peak_bytes * 8 // 10
        assert solve(dear, budget_bytes, solver=solver) == solve(problem, budget_bytes, solver=solver)


@settings(max_examples=60)
@given(chains_and_budgets(), st.data())
def test_only_marked_candidates_that_free_bytes_at_the_peak_are_taken(
    drawn: tuple[Problem, int], data: st.DataObject
) -> None:
    problem, _ = drawn
    marked = data.draw(
        st.sets(st.sampled_from(range(len(problem.candidates)))) if problem.candidates else st.just(set())
    )
    problem = dataclasses.replace(
        problem,
        candidates=tuple(
            dataclasses.replace(c, preset=PRESET if i in marked else "") for i, c in enumerate(problem.candidates)
        ),
    )
    plain = simulate(problem, ())
    for plan in speed_plans(Ledger.of(problem)):
        assert marked.issuperset(plan)
        for c in plan:
            assert simulate(problem, (c,)).level_bytes[plain.peak_step] < plain.peak_bytes
        simulate(problem, plan)  # which refuses overlaps
