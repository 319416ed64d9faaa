"""The worked examples of the docstrings, against the numbers that they work out by hand."""

from __future__ import annotations

import pytest

from autockpt.solvers import (
    Addition,
    Call,
    Candidate,
    Hold,
    Problem,
    Save,
    Step,
    Tensor,
    simulate,
    solve,
)
from autockpt.solvers.columns import Columns
from autockpt.solvers.judge import Judge
from autockpt.solvers.plans.articulation import articulation_plans
from autockpt.solvers.plans.chain import Chain
from autockpt.solvers.programme.model import Model, Question


def row_of_calls(base_bytes: list[int], saved: list[tuple[int, int]], seconds: list[float]) -> Problem:
    """Calls in a row, each of which saves so many bytes until some step, and can be recomputed for so long."""
    n = len(saved)
    return Problem(
        steps=tuple(Step(name=f"step {i}", base_bytes=n_bytes) for i, n_bytes in enumerate(base_bytes)),
        calls=(
            Call(name="", parent=-1, stop=n + 1),
            *(Call(name=f"{i}#0", parent=0, stop=i + 2) for i in range(n)),
        ),
        tensors=tuple(
            Tensor(bytes=n_bytes, free_step=1, saves=(Save(call=i + 1, until=until),))
            for i, (n_bytes, until) in enumerate(saved)
        ),
        candidates=tuple(
            Candidate(name=f"{i}#0", start=i + 1, stop=i + 2, length=1, recompute_seconds=each)
            for i, each in enumerate(seconds)
        ),
    )


def test_model() -> None:
    problem = row_of_calls([0, 2], [(6, 2), (4, 2)], [3.0, 1.0])
    columns = Columns(Judge(problem))
    question = Question(columns, "seconds", 9, most_bytes=9)
    relaxed = Model(question, [0, 1], [1], whole=False).solve(10.0)
    assert relaxed.bound == pytest.approx(0.75)
    assert relaxed.values is not None and relaxed.values[2:4] == pytest.approx([1.0, 0.25])
    whole = Model(question, [0, 1], [1], whole=True).solve(10.0)
    assert whole.bound == pytest.approx(1.0)
    assert whole.values is not None and columns.plan(whole.values) == solve(problem, 9).chosen == (1,)


def test_chain() -> None:
    problem = row_of_calls([0, 0, 0], [(6, 3), (6, 2)], [])
    problem = Problem(
        steps=problem.steps,
        calls=problem.calls,
        tensors=(*problem.tensors, Tensor(bytes=1, free_step=1), Tensor(bytes=1, free_step=1)),
        candidates=tuple(
            Candidate(
                name=f"{i}#0",
                start=i + 1,
                stop=i + 2,
                length=1,
                recompute_seconds=1.0,
                holds=(Hold(tensor=i + 2, until=begins + 1),),
                additions=(Addition(bytes=6, start=begins, until=begins + 1),),
            )
            for i, begins in enumerate((2, 1))
        ),
    )
    chain = Chain(Judge(problem))
    assert chain.plan(7) == (0,)
    assert simulate(problem, (0,)).peak_bytes == 7
    assert simulate(problem, (1,)).peak_bytes == 6 + 1 + 6
    assert chain.plan(6) is None


def test_articulation() -> None:
    problem = row_of_calls([0, 0], [(4, 2), (2, 2), (4, 2)], [1.0, 4.0, 1.0])
    _, grown, *_ = articulation_plans(Judge(problem), 6)
    assert grown == (0,)
    assert simulate(problem, grown).peak_bytes == 6
