from __future__ import annotations

import math
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import Dataflow, InvalidProblem, Item, Lives, Unit, peak_bound

TOLERANCE = 1e-9


@st.composite
def models(draw: st.DrawFn) -> tuple[Dataflow, Lives, int]:
    """A chain with skips, a forward step a unit, then backward steps that read it in turn; and a budget.

    The budget lies between what every schedule needs and what the plain step does.
    """
    n_units = draw(st.integers(2, 4))
    units = [
        Unit(
            name=f"u{u}",
            seconds=draw(st.integers(1, 12)) / 8,
            reads=tuple({u, draw(st.integers(0, u))}),
            makes=(u + 1,),
        )
        for u in range(n_units)
    ]
    items = [Item(bytes=draw(st.integers(1, 9)), saved=bool(draw(st.integers(0, 3)))) for _ in range(n_units + 1)]
    flow = Dataflow(units=tuple(units), items=tuple(items))
    n_steps = 2 * n_units + 1
    free_step, read_steps = [], []
    for t, item in enumerate(items):
        dead = max(u for u, unit in enumerate(units) if t in (*unit.reads, *unit.makes)) + 1
        free_step.append(draw(st.sampled_from((dead, dead, dead, draw(st.integers(dead, n_steps))))))
        reads = {n_steps - 1 - t, draw(st.integers(n_units, n_steps - 1))} if draw(st.booleans()) else {n_steps - 1 - t}
        read_steps.append(tuple(sorted(reads)) if item.saved else ())
    base = draw(st.lists(st.integers(0, 9), min_size=n_steps, max_size=n_steps))
    lives = Lives(
        base_bytes=tuple(base),
        run_step=tuple(range(n_units)),
        free_step=tuple(free_step),
        read_steps=tuple(read_steps),
    )
    plain = [
        base[s] + sum(i.bytes for i, f, r in zip(items, free_step, read_steps, strict=True) if r and f <= s <= r[-1])
        for s in range(n_steps)
    ]
    least = [
        base[s] + sum(i.bytes for i, f, r in zip(items, free_step, read_steps, strict=True) if f <= s and s in r)
        for s in range(n_steps)
    ]
    return flow, lives, draw(st.integers(max(least), max(plain)))


def subsets(things: frozenset[int]) -> list[frozenset[int]]:
    some = chain.from_iterable(combinations(sorted(things), n) for n in range(len(things) + 1))
    return [frozenset(each) for each in some]


def cheapest_schedule(flow: Dataflow, lives: Lives, budget_bytes: int) -> float:
    """Shortest path over (step, items standing in it): drop and run again anything, any number of times."""
    n_items = len(flow.items)

    def free(t: int, step: int) -> bool:
        """Whether it stands in the step whatever a schedule does."""
        born = not flow.makers[t] or lives.run_step[flow.makers[t][0]] <= step
        return born and (flow.items[t].free or lives.free_step[t] > step)

    def standing(pool: frozenset[int], step: int) -> list[frozenset[int]]:
        """What may stand in the step, out of a pool."""
        wanted = {t for t in range(n_items) if step in lives.read_steps[t] and not free(t, step)}
        if not wanted <= pool:
            return []
        choices = [wanted | more for more in subsets(frozenset(t for t in pool - wanted if not free(t, step)))]
        room_bytes = budget_bytes - lives.base_bytes[step]
        return [frozenset(each) for each in choices if sum(flow.items[t].bytes for t in each) <= room_bytes]

    costs = dict.fromkeys(standing(frozenset(t for t in range(n_items) if not flow.makers[t]), 0), 0.0)
    for step in range(1, len(lives.base_bytes)):
        ran = frozenset(u for u in range(len(flow.units)) if lives.run_step[u] < step)
        reached: dict[frozenset[int], float] = {}
        for held, seconds in costs.items():
            there = held | {t for t in range(n_items) if free(t, step - 1)}
            for again in subsets(ran):
                pool = set(there)
                for u in sorted(again):
                    if not pool.issuperset(flow.units[u].reads):
                        break
                    pool.update(flow.units[u].makes)
                else:
                    cost = seconds + sum(flow.units[u].seconds for u in again)
                    for left in standing(frozenset(pool), step):
                        reached[left] = min(cost, reached.get(left, math.inf))
        costs = reached
    return min(costs.values(), default=math.inf)


def test_no_schedule_of_any_kind_costs_less_than_the_bound() -> None:
    tight = []

    @settings(max_examples=200)
    @given(models())
    def check(drawn: tuple[Dataflow, Lives, int]) -> None:
        flow, lives, budget_bytes = drawn
        bound = peak_bound(flow, lives, budget_bytes)
        optimum = cheapest_schedule(flow, lives, budget_bytes)
        assert bound.seconds <= optimum + TOLERANCE
        if 0.0 < bound.seconds < math.inf:
            tight.append((len(bound.steps), bound.seconds / optimum))

    check()
    assert len(tight) > 20
    assert sum(n_rows > 1 for n_rows, _ in tight) >= 3
    assert max(share for _, share in tight) > 0.99


def row_of_pairs(n: int) -> tuple[Dataflow, Lives]:
    """Pairs of an expensive op and a cheap one, each saved; backward reads them in turn."""
    units, items = [], [Item(bytes=1, saved=True)]
    for i in range(n):
        units.append(Unit(name=f"fc{i}", seconds=8.0, reads=(2 * i,), makes=(2 * i + 1,)))
        units.append(Unit(name=f"gelu{i}", seconds=1.0, reads=(2 * i + 1,), makes=(2 * i + 2,)))
        items += [Item(bytes=4, saved=True), Item(bytes=4, saved=True)]
    n_steps = 2 * len(units) + 1
    lives = Lives(
        base_bytes=(10,) * n_steps,
        run_step=tuple(range(len(units))),
        free_step=tuple(min(t + 1, len(units)) for t in range(len(items))),
        read_steps=tuple((n_steps - 1 - t,) for t in range(len(items))),
    )
    return Dataflow(units=tuple(units), items=tuple(items)), lives


def test_recomputing_the_cheap_half_is_what_the_bound_asks_for() -> None:
    flow, lives = row_of_pairs(8)
    plain_bytes = 10 + 8 * 8 + 1
    assert peak_bound(flow, lives, plain_bytes).seconds == 0.0
    bound = peak_bound(flow, lives, plain_bytes - 5 * 4)
    assert bound.seconds == pytest.approx(5.0)
    assert bound.converged
    assert peak_bound(flow, lives, 10).seconds == math.inf


def test_out_of_time_the_bound_is_weaker_and_says_so() -> None:
    flow, lives = row_of_pairs(8)
    budget_bytes = 10 + 8 * 8 + 1 - 40
    weak, full = (peak_bound(flow, lives, budget_bytes, seconds=s) for s in (0.0, 60.0))
    assert not weak.converged and full.converged
    assert 0.0 <= weak.seconds <= full.seconds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_step": ()}, "0 run steps for 2 units"),
        ({"free_step": (0,)}, "1 free steps and 3 rows of read steps for 3 items"),
        ({"run_step": (0, 9)}, "outside the 5 steps"),
        ({"free_step": (0, 0, 9)}, "freed outside the 5 steps"),
    ],
)
def test_lives_that_do_not_fit_are_refused(change: dict[str, tuple[int, ...]], message: str) -> None:
    flow, lives = row_of_pairs(1)
    fields = {name: getattr(lives, name) for name in Lives.__dataclass_fields__}
    with pytest.raises(InvalidProblem, match=message):
        peak_bound(flow, Lives(**(fields | change)), 20)
