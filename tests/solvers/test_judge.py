from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings

from autockpt.solvers import (
    Addition,
    AutockptError,
    Call,
    Candidate,
    Hold,
    Infeasible,
    InvalidProblem,
    Problem,
    Save,
    Solution,
    Status,
    Step,
    Tensor,
    simulate,
)
from autockpt.solvers.columns import Columns
from autockpt.solvers.judge import Judge

from .strategies import problems_and_plans


def naive_levels(problem: Problem, chosen: tuple[int, ...]) -> tuple[int, ...]:
    """Ask of every step, tensor by tensor, what stands there."""
    candidates = [problem.candidates[c] for c in chosen]

    def held(i: int, tensor: Tensor, step: int) -> bool:
        saved = any(
            step < save.until and not any(c.start <= save.call < c.stop for c in candidates) for save in tensor.saves
        )
        return saved or any(hold.tensor == i and step < hold.until for c in candidates for hold in c.holds)

    return tuple(
        step.base_bytes
        + sum(t.bytes for i, t in enumerate(problem.tensors) if now >= t.free_step and held(i, t, now))
        + sum(a.bytes for c in candidates for a in c.additions if a.start <= now < a.until)
        for now, step in enumerate(problem.steps)
    )


@settings(max_examples=100)
@given(problems_and_plans())
def test_what_each_candidate_frees_in_a_step_is_what_the_levels_say(drawn: tuple[Problem, tuple[int, ...]]) -> None:
    judge = Judge(drawn[0])
    plain, alone = judge.levels(()), [judge.levels((c,)) for c in range(len(judge.candidates))]
    for step in range(len(plain)):
        assert judge.freed_at(step) == [int(plain[step] - levels[step]) for levels in alone]


@settings(max_examples=150)
@given(problems_and_plans())
def test_judge_equals_a_naive_reading_of_the_definition(drawn: tuple[Problem, tuple[int, ...]]) -> None:
    problem, plan = drawn
    timeline = simulate(problem, plan)
    assert timeline.level_bytes == naive_levels(problem, plan)
    assert timeline.peak_bytes == max(timeline.level_bytes)
    assert timeline.level_bytes[timeline.peak_step] == timeline.peak_bytes
    assert timeline.recompute_seconds == pytest.approx(sum(problem.candidates[c].recompute_seconds for c in plan))
    saved = zip(problem.tensors, timeline.saved_until, timeline.needed_until, strict=True)
    for i, (tensor, saved_until, needed_until) in enumerate(saved):
        covered = {call for c in plan for call in range(problem.candidates[c].start, problem.candidates[c].stop)}
        saves = [save.until for save in tensor.saves if save.call not in covered]
        holds = [hold.until for c in plan for hold in problem.candidates[c].holds if hold.tensor == i]
        assert saved_until == max([tensor.free_step, *saves])
        assert needed_until == max([tensor.free_step, *holds])


@settings(max_examples=150)
@given(problems_and_plans())
def test_columns_stand_as_high_as_the_judge(drawn: tuple[Problem, tuple[int, ...]]) -> None:
    problem, plan = drawn
    expected = simulate(problem, plan).level_bytes
    columns = Columns(Judge(problem))
    values = columns.values(plan)
    assert tuple(columns.levels(values).tolist()) == expected
    assert columns.plan(values) == plan
    taken = {*plan, *(c for c in range(columns.n_candidates, len(columns.arcs)) if values[c])}
    assert not taken & columns.closed(max(expected))


def test_overlapping_candidates_are_refused() -> None:
    candidates = tuple(
        Candidate(name=f"{start}", start=start, stop=stop, length=1, recompute_seconds=1.0)
        for start, stop in ((0, 2), (1, 2))
    )
    problem = Problem(
        steps=(Step(name="s", base_bytes=1),),
        calls=(Call(name="", parent=-1, stop=2), Call(name="a", parent=0, stop=2)),
        candidates=candidates,
    )
    with pytest.raises(InvalidProblem, match="'0' and '1' overlap"):
        simulate(problem, (1, 0))


CALLS = (Call(name="", parent=-1, stop=2), Call(name="a", parent=0, stop=2))
VALID = Problem(
    steps=(Step(name="f", base_bytes=1), Step(name="b", base_bytes=1)),
    calls=CALLS,
    tensors=(Tensor(bytes=1, free_step=0),),
)
CANDIDATE = Candidate(name="a", start=1, stop=2, length=1, recompute_seconds=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": ()}, "at least one step"),
        ({"steps": (Step(name="f", base_bytes=-1),) * 2}, "negative base bytes -1"),
        ({"calls": (Call(name="", parent=0, stop=1),)}, "has parent 0"),
        ({"calls": (Call(name="", parent=-1, stop=2),)}, "stop 2 of 1 calls"),
        ({"calls": (Call(name="", parent=-1, stop=1), Call(name="a", parent=0, stop=2))}, "after its parent"),
        ({"tensors": (Tensor(bytes=-1, free_step=0),)}, "negative bytes -1"),
        ({"tensors": (Tensor(bytes=1, free_step=3),)}, "freed at step 3 of 2"),
        ({"tensors": (Tensor(bytes=1, free_step=0, saves=(Save(call=2, until=1),)),)}, "saved by call 2 of 2"),
        ({"tensors": (Tensor(bytes=1, free_step=0, saves=(Save(call=1, until=3),)),)}, "until step 3 of 2"),
        ({"candidates": (replace(CANDIDATE, stop=3),)}, "spans"),
        ({"candidates": (replace(CANDIDATE, start=2),)}, "spans"),
        ({"candidates": (replace(CANDIDATE, length=0),)}, "run of 0 calls"),
        ({"candidates": (replace(CANDIDATE, recompute_seconds=-1.0),)}, "costs -1.0 seconds"),
        ({"candidates": (replace(CANDIDATE, recompute_seconds=float("nan")),)}, "costs nan seconds"),
        ({"candidates": (replace(CANDIDATE, holds=(Hold(tensor=1, until=1),)),)}, "holds tensor 1 of 1"),
        ({"candidates": (replace(CANDIDATE, holds=(Hold(tensor=0, until=3),)),)}, "until step 3 of 2"),
        ({"candidates": (replace(CANDIDATE, additions=(Addition(bytes=1, start=2, until=1),)),)}, "adds 1 bytes"),
        ({"candidates": (replace(CANDIDATE, additions=(Addition(bytes=-1, start=0, until=1),)),)}, "adds -1 bytes"),
    ],
)
def test_contradictory_problems_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        replace(VALID, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "bound", "gap"), [(2.0, 1.5, 0.25), (2.0, 2.0, 0.0), (0.0, 0.0, 0.0), (2.0, None, None)]
)
def test_gap_is_relative_to_the_cost(seconds: float, bound: float | None, gap: float | None) -> None:
    solution = Solution(
        chosen=(),
        peak_bytes=1,
        recompute_seconds=seconds,
        status=Status.FEASIBLE,
        solver="ilp",
        lower_bound_seconds=bound,
    )
    assert solution.gap == gap


def test_infeasible_says_both_numbers_and_survives_pickling() -> None:
    error = Infeasible(budget_bytes=1000, minimum_bytes=2500, solver="ilp", dominated_by="step 'x'")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, Infeasible)
    assert isinstance(again, AutockptError)
    assert vars(again) == vars(error)
    assert str(again) == str(error)
    for part in ("budget 1000 B:", "2.44 KiB", "step 'x'", "'ilp'"):
        assert part in str(error)
