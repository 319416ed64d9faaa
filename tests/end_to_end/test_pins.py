"""Pins on a real model: whatever solver chose, calls to keep do not run again, and calls to recompute do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import pytest
from torch import nn

import autockpt
from autockpt import Infeasible, Plan
from autockpt.solvers import SOLVERS
from tests.end_to_end.reference import Reference, timeless
from tests.remembered import candidates_once
from tests.rows import crossed
from tests.zoo import Case, gpt2, tokens

KEEP, RECOMPUTE = ("*.attn", "transformer.h.2"), ("transformer.h.1.mlp", "*.0.ln_2", "transformer.ln_f#0")


@pytest.fixture(autouse=True, scope="module")
def once() -> Iterator[None]:
    with candidates_once():
        yield


@lru_cache(maxsize=1)
def plain_step() -> Reference:
    return timeless(Case(gpt2(n_layer=4).train(), tokens(500)))


@contextmanager
def running_again(model: nn.Module) -> Iterator[set[str]]:
    """Collect the names of the modules whose own forward runs while autockpt recomputes."""
    names, again = {id(module): name for name, module in model.named_modules()}, set()

    def watched(original: Any) -> Any:
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if autockpt.is_recomputing():
                again.add(names[id(self)])
            return original(self, *args, **kwargs)

        return forward

    patches = [patch.object(kind, "forward", watched(kind.forward)) for kind in {type(m) for m in model.modules()}]
    for each in patches:
        each.start()
    try:
        yield again
    finally:
        for each in patches:
            each.stop()


def ran_again(plain: Reference, plan: Plan) -> set[str]:
    """Run a planned step, compare it with the plain one, and return the modules that ran again."""
    model = plain.case.model
    with running_again(model) as again:
        autockpt.apply(model, plan=plan, check="never")  # a rehearsal undoes what replays note
        try:
            outcome = plain.outcome()
        finally:
            autockpt.remove(model)
    assert plain.plain.differences(outcome) == []
    return again


@crossed(percent=[70, 100], solver=sorted(SOLVERS))
def test_every_solver_honours_pins(solver: str, percent: int) -> None:
    plain = plain_step()
    budget = plain.plain_peak_bytes * percent // 100
    limit = {"solver": solver, "seconds": 1.0}
    try:
        plan = autockpt.solve(plain.profile, budget, keep=KEEP, recompute=RECOMPUTE, **limit)  # type: ignore[arg-type]
    except Infeasible as error:
        assert percent < 100
        assert error.unpinned_minimum_bytes is not None
        budget = error.minimum_bytes
        plan = autockpt.solve(plain.profile, budget, keep=KEEP, recompute=RECOMPUTE, **limit)  # type: ignore[arg-type]
    assert plan.peak_bytes <= budget
    again = ran_again(plain, plan)
    assert {"transformer.h.1.mlp", "transformer.h.0.ln_2", "transformer.ln_f"} <= again
    assert not {name for name in again if name.endswith(".attn") or name.startswith(("transformer.h.2", "lm_head"))}


def test_products_that_are_kept_leave_what_lies_between_them() -> None:
    """The "collection" of OpenAI's three modes: whoever knows what is dear names it."""
    plain = plain_step()
    products = ("*.c_attn", "*.c_proj", "*.c_fc")
    budget = plain.plain_peak_bytes * 8 // 10
    again = ran_again(plain, autockpt.solve(plain.profile, budget, keep=products))
    assert "transformer.h.1.mlp.act" in again
    assert not {name for name in again if name.endswith(("c_attn", "c_proj", "c_fc"))}


def test_pinning_by_hand_is_a_plan_without_a_solver() -> None:
    plain = plain_step()
    plan = autockpt.solve(plain.profile, plain.plain_peak_bytes, solver="none", recompute="transformer.h.[13]")
    assert [segment.calls for segment in plan.segments] == [("transformer.h.1#0",), ("transformer.h.3#0",)]
    assert {"transformer.h.1.mlp.c_fc", "transformer.h.3.attn"} <= ran_again(plain, plan)


def test_apply_and_verify_take_pins() -> None:
    plain = plain_step()
    model, budget = plain.case.model, plain.plain_peak_bytes * 8 // 10
    autockpt.apply(model, budget, inputs=plain.case.kwargs, keep="*.mlp", recompute="*.3.attn", seconds=1.0)
    plan = autockpt.plan_of(model)
    autockpt.remove(model)
    assert plan is not None
    assert (plan.pinned_keep, plan.pinned_recompute) == (("*.mlp",), ("*.3.attn",))
    again = ran_again(plain, plan)
    assert "transformer.h.3.attn" in again
    assert not {name for name in again if name.endswith(".mlp")}
    roomy = plain.plain_peak_bytes * 11 // 10
    found = autockpt.verify(model, plain.case.kwargs, budget=roomy, solver="none", recompute="transformer.h.0.mlp")
    assert (found.verdict, found.segments) == ("exact", 1)
