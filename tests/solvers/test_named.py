"""Plans that others have named: one plan each, whatever the budget, and what is refused by name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import Infeasible, Problem, UnknownSolver, solve, sweep

from .strategies import problems
from .synthetic import Trace, encoder_decoder, transformer

PLENTY = 10**15
ONE = transformer(1)


def segments(problem: Problem, solver: str) -> list[tuple[str, ...]]:
    """What a solver recomputes where there is room, as the names of the calls in each segment."""
    chosen = [problem.candidates[c] for c in solve(problem, PLENTY, solver=solver).chosen]
    return [tuple(sorted(children(problem, each.start, each.stop))) for each in chosen]


def children(problem: Problem, start: int, stop: int) -> Iterator[str]:
    parent = problem.calls[start].parent
    return (call.name for call in problem.calls[start:stop] if call.parent == parent)


def layers(first: int, stop: int, stack: str = "transformer.h") -> tuple[str, ...]:
    return tuple(sorted(f"{stack}.{i}#0" for i in range(first, stop)))


def twice(microbatches: bool) -> Problem:
    """Two blocks that run twice: for two microbatches, or in one, between calls of a head that runs once."""
    t = Trace()
    t.open("")
    x = t.op(4, seconds=1.0)
    for occurrence in range(2):
        for i in range(2):
            t.open(f"h.{i}")
            x = t.leaf(f"h.{i}.in", 6, x, seconds=1.0, saves=(x,))
            x = t.leaf(f"h.{i}.out", 6, x, seconds=1.0, saves_out=True)
            t.close()
        if microbatches or occurrence:
            x = t.leaf("head", 6, x, seconds=1.0, saves_out=True)
    t.close()
    problem, seen = t.problem(static_bytes=1), Counter[str]()
    calls = []
    for call in problem.calls:
        name = call.name.rpartition("#")[0]
        calls.append(dataclasses.replace(call, name=f"{name}#{seen[name]}"))
        seen[name] += 1
    return dataclasses.replace(problem, calls=tuple(calls))


@settings(max_examples=40)
@given(problems())
def test_always_and_never_are_the_plans_of_all_and_none(problem: Problem) -> None:
    for name, other in (("always", "all"), ("never", "none")):
        assert solve(problem, PLENTY, solver=name).chosen == solve(problem, PLENTY, solver=other).chosen


@pytest.mark.parametrize("number", [1, 2, 5, 12, 100])
def test_uniform_makes_segments_of_so_many_layers(number: int) -> None:
    expected = [layers(i, min(i + number, 12)) for i in range(0, 12, number)]
    assert segments(transformer(12), f"uniform:{number}") == expected


@pytest.mark.parametrize("number", [1, 7, 12, 100])
def test_block_takes_the_first_layers_each_by_itself(number: int) -> None:
    assert segments(transformer(12), f"block:{number}") == [layers(i, i + 1) for i in range(min(number, 12))]


def test_encoder_and_decoder_are_counted_by_themselves() -> None:
    found = segments(encoder_decoder(6), "uniform:4")
    assert sorted(found) == sorted(
        layers(first, stop, stack) for stack in ("encoder", "decoder") for first, stop in ((0, 4), (4, 6))
    )
    assert len(segments(encoder_decoder(6), "block:2")) == 4


@pytest.mark.parametrize("solver", ["uniform:2", "block:3", "always"])
def test_the_plan_is_the_same_for_every_budget_that_it_meets_and_for_others_says_its_peak(solver: str) -> None:
    problem = transformer(12)
    roomy = solve(problem, PLENTY, solver=solver)
    assert roomy.solver == solver
    assert solve(problem, roomy.peak_bytes, solver=solver).chosen == roomy.chosen
    with pytest.raises(Infeasible) as caught:
        solve(problem, roomy.peak_bytes - 1, solver=solver)
    assert (caught.value.minimum_bytes, caught.value.solver) == (roomy.peak_bytes, solver)
    assert [each.solver for each in sweep(problem, solver=solver, points=3)] == ["none", solver]


def test_except_last_leaves_the_last_microbatch() -> None:
    """Where a step has one nothing is recomputed, as under torchgpipe; modules that are called twice are no second."""
    first = [("h.0#0",), ("h.1#0",), ("head#0",)]
    assert segments(twice(microbatches=True), "always") == [*first, ("h.0#1",), ("h.1#1",), ("head#1",)]
    assert segments(twice(microbatches=True), "except_last") == first
    assert segments(twice(microbatches=False), "except_last") == []
    assert segments(transformer(4), "except_last") == []


def test_layers_are_counted_in_each_microbatch() -> None:
    assert segments(twice(microbatches=True), "block:1") == [("h.0#0",), ("h.0#1",)]
    assert segments(twice(microbatches=True), "uniform:3") == [("h.0#0", "h.1#0"), ("h.0#1", "h.1#1")]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("uniform:0", "'uniform:0' is told '0' layers; give a whole number from 1 to 999999: 'uniform:4'"),
        ("uniform:x", "'uniform:x' is told 'x' layers; give a whole number"),
        ("uniform:", "'uniform:' is told '' layers; give a whole number"),
        ("block:-1", "'block:-1' is told '-1' layers; give a whole number from 1 to 999999: 'block:4'"),
        ("block:²", "give a whole number"),
        ("block:1_0", "give a whole number"),
        ("sqrt:3", "solver 'sqrt' takes no number, and 'sqrt:3' has one; write 'sqrt'"),
        ("unifrom:4", "did you mean 'uniform:4'\\? there are all, "),
        ("zzz:4", "no solver is called 'zzz:4'; there are all, .* and block:N and uniform:N for N layers"),
    ],
)
def test_a_bad_number_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(UnknownSolver, match=said) as caught:
        solve(transformer(1), PLENTY, solver=name)
    assert "\n" not in str(caught.value)


@settings(max_examples=30)
@given(st.text(max_size=12))
def test_any_other_text_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnknownSolver):
        solve(ONE, PLENTY, solver=f"{text}:")
