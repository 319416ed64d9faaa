"""The frontier: from a profile to plans for every budget, as a text, and as a file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import autockpt
from autockpt import Frontier, Infeasible, InvalidFile, Plan, frontier, solve
from autockpt.solvers import simulate
from tests.doors import find_candidates, frontier_page

from ..handmade import chain_profile

MIB = 2**20


@functools.lru_cache
def chain() -> Frontier:
    return frontier(chain_profile(), points=8)


def test_it_goes_from_plain_to_the_minimum() -> None:
    found = chain()
    profile = chain_profile()
    problem = find_candidates(profile).problem
    assert found.plans[0].segments == ()
    assert found.plain_peak_bytes == found.plans[0].peak_bytes == simulate(problem, ()).peak_bytes
    for above, below in pairwise(found.plans):
        assert above.peak_bytes > below.peak_bytes
        assert above.recompute_seconds <= below.recompute_seconds
    assert found.plans[1].recompute_seconds < found.plans[-1].recompute_seconds
    with pytest.raises(Infeasible) as caught:
        solve(profile, 1)
    assert found.minimum_bytes == found.plans[-1].peak_bytes == caught.value.minimum_bytes
    assert found.dominated_by == caught.value.dominated_by
    assert len(found.plans) == 3


def test_each_plan_is_what_solve_finds_for_its_peak() -> None:
    for plan in chain().plans:
        alone = solve(chain_profile(), plan.peak_bytes)
        assert plan.recompute_seconds == pytest.approx(alone.recompute_seconds, rel=1e-9)
        assert plan.status == alone.status == "optimal"
        assert plan.budget_bytes == plan.peak_bytes
        assert plan.refused == alone.refused
        assert plan.profile_mode == "measured"


def test_within_picks_the_cheapest_that_fits() -> None:
    found = chain()
    for above, below in pairwise(found.plans):
        assert found.within(above.peak_bytes) is above
        assert found.within(above.peak_bytes - 1) is below
    assert found.within("1TB") is found.plans[0]
    assert found.within("50%", total_bytes=2 * found.minimum_bytes) is found.plans[-1]
    with pytest.raises(Infeasible) as caught:
        found.within(found.minimum_bytes - 1)
    assert caught.value.minimum_bytes == found.minimum_bytes
    assert caught.value.dominated_by in str(caught.value)
    assert caught.value.plan is found.plans[-1]
    with pytest.raises(autockpt.BudgetError):
        found.within("8 G B")


def test_budgets_that_are_asked_for_are_on_it() -> None:
    found = frontier(chain_profile(), budgets=["50MiB", 40 * MIB, 1, "1TB"])
    assert found.minimum_bytes == chain().minimum_bytes
    assert len(found.plans) == 4
    for budget in ("50MiB", 40 * MIB):
        alone = solve(chain_profile(), budget)
        assert found.within(budget).recompute_seconds == pytest.approx(alone.recompute_seconds, rel=1e-9)


def test_a_solver_that_cannot_lower_the_peak_leaves_the_plain_plan() -> None:
    found = frontier(chain_profile(), solver="none")
    assert len(found.plans) == 1
    assert found.minimum_bytes == found.plain_peak_bytes
    assert "minimum" in found.explain()


def test_bounds_hold_and_grow_with_the_bytes_that_are_freed(tmp_path: Path) -> None:
    """On a recorded step, whose operators are known; a plan from the frontier can be applied."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    block = [torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32)]
    model = torch.nn.Sequential(*(torch.nn.Sequential(*block) for _ in range(3)))
    batch = torch.randn(256, 32)
    found = frontier(autockpt.profile(model, batch), points=4)
    bounds = [plan.lower_bound_seconds for plan in found.plans]
    known = [bound for bound in bounds if bound is not None]
    assert known == sorted(known)
    assert known[0] == 0.0 < known[-1]
    assert all(plan.gap is not None and 0.0 <= plan.gap <= 1.0 for plan in found.plans)
    plan = found.within(found.minimum_bytes)
    autockpt.apply(model, plan=plan)
    assert autockpt.plan_of(model) == plan
    model(batch).sum().backward()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"points": 1}, autockpt.BudgetError),
        ({"budgets": ["8 G B"]}, autockpt.BudgetError),
        ({"budgets": ["80%"]}, autockpt.BudgetError),
        ({"solver": "best"}, autockpt.UnknownSolver),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_misuse(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        frontier(chain_profile(), **options)


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    chain().save(path)
    assert Frontier.load(path) == chain()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidFile, match="not a valid"):
        Frontier.load(path)


def turned(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return plans[::-1]


def without_plain(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return plans[1:]


def dominated(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    seconds = plans[-1].recompute_seconds
    return (*plans[:-2], msgspec.structs.replace(plans[-2], recompute_seconds=seconds), plans[-1])


def equal_peaks(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return (*plans[:-1], msgspec.structs.replace(plans[-1], peak_bytes=plans[-2].peak_bytes))


def nothing(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return ()


@pytest.mark.parametrize("wrong", [turned, without_plain, dominated, equal_peaks, nothing])
def test_a_file_that_contradicts_itself(wrong: Callable[[tuple[Plan, ...]], tuple[Plan, ...]], tmp_path: Path) -> None:
    document = msgspec.to_builtins(chain())
    document["plans"] = msgspec.to_builtins(wrong(chain().plans))
    path = tmp_path / "frontier.json"
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(InvalidFile, match="not a valid"):
        Frontier.load(path)


@pytest.mark.parametrize(
    ("schema", "cure"), [("autockpt.frontier/9", "Record or solve it again"), ("autockpt.plan/1", "of that kind")]
)
def test_a_file_of_another_schema(schema: str, cure: str, tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(chain()) | {"schema": schema}))
    with pytest.raises(InvalidFile, match=f"{schema}.*{cure}"):
        Frontier.load(path)


@pytest.mark.parametrize(("width", "columns"), [(60, 6), (80, 8), (100, 9)])
def test_the_text_fits_and_marks_the_minimum(width: int, columns: int) -> None:
    text = frontier_page(bounded(chain())).text(width)
    assert max(len(line) for line in text.splitlines()) <= width
    header = next(line for line in text.splitlines() if line.startswith("plan "))
    told = ["plan", "peak", "of plain", "freed", "recompute", "of step", "gap", "segments", "solver"]
    assert sum(column in header for column in told) == columns
    rows = [line for line in text.splitlines() if line.startswith(("plain ", "minimum "))]
    assert [row.split()[0] for row in rows] == ["plain", "minimum"]
    assert f"{chain().minimum_bytes / MIB:.2f} MiB" in rows[-1]


def test_a_gap_that_is_not_known_takes_no_column() -> None:
    for shown, known in ((bounded(chain()), True), (chain(), False)):
        assert ("; gap: " in shown.explain()) == known
        assert (">gap<" in shown._repr_html_()) == known


def bounded(found: Frontier) -> Frontier:
    """The frontier with a lower bound for each plan."""
    plans = tuple(
        msgspec.structs.replace(plan, lower_bound_seconds=0.9 * plan.recompute_seconds) for plan in found.plans
    )
    return msgspec.structs.replace(found, plans=plans)
