"""The largest batch: held against the allocator, against the size above it, and against models that break its rules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from autockpt import BudgetError, GrowthError, Infeasible, PinError
from tests.doors import RecordMode
from tests.toys.told import Told, around

WIDTH = 32

BUDGET_BYTES = 1_000_000

SOLVER: Any = {"solver": "articulation"}

QUICK: Any = {**SOLVER, "mode": "fake"}


def blocks(calm: int | None = None) -> nn.Module:
    """Blocks with dropout; the head does something else where there are more samples than `calm`."""
    wide, narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    block = nn.Sequential(wide, nn.GELU(), nn.Dropout(0.1), narrow)

    def act(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        for block in own.blocks:
            hidden = hidden + block(hidden)
        return hidden if calm is None or len(hidden) <= calm else hidden.sigmoid().exp()

    return Told(act, blocks=nn.ModuleList(copy.deepcopy(block) for _ in range(3)))


def tokens(samples: int) -> torch.Tensor:
    return torch.randn(samples, 16, WIDTH)


def measured_peak(model: torch.nn.Module, batch: torch.Tensor) -> int:
    """Static bytes, and what the allocator saw the step add to what was alive."""

    def step() -> None:
        outputs = model(batch)
        outputs.sum().backward()
        del outputs
        model.zero_grad()

    step()
    static: int = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), batch))
    return static + autockpt.measure(step, device="cpu").step_bytes


@pytest.mark.parametrize(
    ("calm", "mode", "solver"),
    [
        pytest.param(None, "measured", "auto", id="one structure"),
        pytest.param(6, "measured", "articulation", id="another from 7 on"),
        pytest.param(10, "fake", "articulation", id="another from 11 on, fake", marks=pytest.mark.sweep),
    ],
)
def test_it_fits_and_one_more_does_not(calm: int | None, mode: RecordMode, solver: str) -> None:
    model = blocks(calm)
    found = autockpt.max_batch(model, tokens, BUDGET_BYTES, mode=mode, solver=solver, seconds=1.0)
    assert found.batch_size > max(found.plain_batch_size, calm or 0)
    with pytest.raises(Infeasible):
        autockpt.solve(autockpt.profile(model, tokens(found.batch_size + 1), mode=mode), BUDGET_BYTES, solver=solver)

    plain = found.plain_batch_size
    assert measured_peak(model, tokens(plain)) <= BUDGET_BYTES < measured_peak(model, tokens(plain + 1))
    batch = tokens(found.batch_size)
    autockpt.apply(model, plan=found.plan)
    peak_bytes = measured_peak(model, batch)
    assert peak_bytes <= BUDGET_BYTES
    assert peak_bytes == pytest.approx(found.plan.peak_bytes, rel=0.001)


def test_throughputs_say_what_each_size_brings() -> None:
    model = blocks()
    found = autockpt.max_batch(model, tokens, BUDGET_BYTES, **QUICK)
    assert autockpt.plan_of(model) is None
    sizes = [each.batch_size for each in found.throughputs]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == found.batch_size
    assert found.plain_batch_size in sizes
    assert found.throughputs[-1].plan == found.plan
    plans = [each.plan for each in found.throughputs]
    assert all(plan.peak_bytes <= BUDGET_BYTES == plan.budget_bytes for plan in plans)
    assert [plan.plain_peak_bytes for plan in plans] == sorted(plan.plain_peak_bytes for plan in plans)
    for each in found.throughputs:
        assert (each.plan.segments == ()) == (each.batch_size <= found.plain_batch_size)
        assert each.samples_per_second * (each.plan.plain_seconds + each.plan.recompute_seconds) == pytest.approx(
            each.batch_size
        )
    assert found.best.samples_per_second == max(each.samples_per_second for each in found.throughputs)
    text = found.explain()
    assert f"{found.batch_size} samples" in text and text == f"{found}\n"
    (marked,) = [line for line in text.splitlines() if line.endswith("best")]
    assert marked.split()[0] == str(found.best.batch_size)


def test_a_single_sample_may_be_all_that_fits() -> None:
    model = blocks()
    one, two = (autockpt.profile(model, tokens(size), mode="fake") for size in (1, 2))
    with pytest.raises(Infeasible) as error:
        autockpt.solve(two, 1, solver="articulation")
    found = autockpt.max_batch(model, tokens, error.value.minimum_bytes - 1, **QUICK)
    assert found.batch_size == 1
    assert [each.batch_size for each in found.throughputs] == [1]
    with pytest.raises(Infeasible) as error:
        autockpt.max_batch(model, tokens, one.static.total_bytes, **QUICK)
    assert error.value.minimum_bytes > one.static.total_bytes
    assert error.value.plan is not None


def test_no_more_than_is_wanted() -> None:
    asked: list[int] = []

    def inputs(samples: int) -> torch.Tensor:
        asked.append(samples)
        return tokens(samples)

    found = autockpt.max_batch(blocks(), inputs, "1GB", most=6, **QUICK)
    assert found.batch_size == found.plain_batch_size == 6 == max(asked)
    assert found.plan.segments == ()
    assert len(set(asked)) == len(asked)


def test_pins_bind_it() -> None:
    found = autockpt.max_batch(blocks(), tokens, BUDGET_BYTES, keep="blocks.*", **QUICK)
    assert found.batch_size == found.plain_batch_size
    assert found.plan.pinned_keep == ("blocks.*",)
    with pytest.raises(PinError):
        autockpt.max_batch(blocks(), tokens, BUDGET_BYTES, keep="layers.*", **QUICK)


def loop() -> nn.Module:
    """Goes through its samples one by one, so that no two sizes make the same calls."""
    layer = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU())
    return around(layer, lambda layer, x: torch.stack([layer(sample).sum() for sample in x]))


def test_a_model_may_make_other_calls_at_each_size() -> None:
    found = autockpt.max_batch(loop(), tokens, "200kB", most=64, **QUICK)
    assert 4 < found.plain_batch_size < found.batch_size < 64
    with pytest.raises(Infeasible):
        autockpt.solve(autockpt.profile(loop(), tokens(found.batch_size + 1), mode="fake"), "200kB", **SOLVER)


@pytest.mark.parametrize("make_inputs", [lambda samples: tokens(3), lambda samples: tokens(9 - samples)])
def test_batches_that_do_not_grow(make_inputs: Callable[[int], object]) -> None:
    with pytest.raises(GrowthError, match="as many samples as it is asked for"):
        autockpt.max_batch(blocks(), make_inputs, "1MB", **QUICK)


@pytest.mark.parametrize("options", [{"budget": 0}, {"budget": -5}, {"budget": "much"}, {"most": 0}], ids=str)
def test_nonsense_is_refused_before_anything_runs(options: dict[str, Any]) -> None:
    def never(samples: int) -> torch.Tensor:
        raise AssertionError("nothing has to run")

    with pytest.raises(BudgetError):
        autockpt.max_batch(blocks(), never, **{"budget": "1MB", **options})
