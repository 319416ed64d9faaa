"""Pins on a real model: whatever solver chose, calls to keep do not run again, and calls to recompute do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional

import autockpt
from autockpt import Infeasible, PinError, Plan
from autockpt.solvers import SOLVERS
from tests.end_to_end.reference import Reference, timeless
from tests.remembered import candidates_once
from tests.rows import crossed
from tests.zoo import Case, gpt2, tokens

PREDICTION_TOLERANCE = 0.005
"""Measured over predicted peak."""

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


class Attention(nn.Module):
    """Plain attention: its scores, their softmax and its dropout are torch functions of its own code."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.into, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        several = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = several.unbind(0)
        weights = functional.softmax(torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5, -1)
        weights = functional.dropout(weights, 0.1, self.training)
        out: torch.Tensor = self.out(torch.matmul(weights, v).transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), Attention(width, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.attn(self.norm(x))
        return out


CORE = ("*.attn/matmul*", "*.attn/softmax", "*.attn/dropout")


@lru_cache(maxsize=1)
def plain_attention() -> tuple[nn.Module, torch.Tensor, autockpt.Profile]:
    model, batch = nn.Sequential(*(Layer(32, 4) for _ in range(3))).train(), torch.randn(4, 128, 32)
    return model, batch, autockpt.profile(model, batch)


@pytest.mark.parametrize(
    ("pins", "kept"),
    [
        ({"recompute": "*.attn/softmax"}, {"dropout", "flatten"}),
        ({"recompute": CORE}, {"flatten"}),
        ({"recompute": ("1.attn/softmax#0", "0.attn"), "keep": "0.attn/softmax"}, {"softmax", "dropout", "flatten"}),
        ({"recompute": ""}, set()),
    ],
)
def test_pins_on_functions_and_on_the_model_run_at_the_predicted_peak(pins: dict[str, Any], kept: set[str]) -> None:
    """Megatron-LM's selective recomputation of the attention core, by hand, and less, and more of it."""
    model, batch, profile = plain_attention()
    plan = autockpt.solve(profile, "1GB", solver="none", **pins)
    named = [key.rpartition("/")[2].partition("#")[0] for segment in plan.segments for key in segment.keep]
    assert {name for name in named if name} == kept
    found = autockpt.verify(model, batch, plan=plan)
    assert (found.verdict, found.segments, found.not_replayed, found.not_met) == ("exact", len(plan.segments), (), ())
    assert found.measured_peak_bytes == pytest.approx(found.predicted_peak_bytes, rel=PREDICTION_TOLERANCE)
    assert (plan.peak_bytes < profile.plain_peak_bytes) == bool(kept)  # the replay of a whole model restores all


def test_the_attention_core_by_hand_frees_its_scores() -> None:
    _, _, profile = plain_attention()
    by_hand = autockpt.solve(profile, "1GB", solver="none", recompute=CORE)
    assert [segment.calls for segment in by_hand.segments] == [(f"{i}.attn#0",) for i in range(3)]
    scores_bytes = 4 * 4 * 128 * 128 * 4
    for segment in by_hand.segments:
        assert segment.freed_bytes >= 2 * scores_bytes  # what softmax and dropout hand on; and the mask
        assert not any("softmax" in key or "dropout" in key for key in (*segment.keep, *segment.skip))
    searched = autockpt.solve(profile, "1GB", recompute=CORE)
    assert {segment.calls for segment in by_hand.segments} <= {segment.calls for segment in searched.segments}


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (
            {"recompute": "*.attn/sofmax"},
            r"no torch function .*attn/sofmax'; the nearest names are '.*attn/softmax'",
        ),
        (
            {"recompute": "*.attn/transpose"},
            "it saves nothing for backward, so that running it again would free nothing",
        ),
        ({"recompute": "*.attn/softmax", "keep": "*/soft*"}, "matches keep='\\*/soft\\*': it cannot be both"),
        ({"recompute": "*.attn/softmax", "keep": "0.attn"}, "lies in '0.attn#0', which matches keep='0.attn'"),
        ({"recompute": "*.atn/softmax"}, "no module matches '\\*.atn/softmax'; near are"),
        ({"recompute": "Sequentiel"}, "no module matches 'Sequentiel'"),
    ],
)
def test_pins_on_functions_that_cannot_be_honoured_say_why(pins: dict[str, Any], said: str) -> None:
    model, batch, _ = plain_attention()
    with pytest.raises(PinError, match=said) as caught:
        autockpt.apply(model, "1GB", inputs=batch, **pins)
    assert "\n" not in str(caught.value)
    autockpt.remove(model)


def test_pins_on_every_block_are_the_plan_of_every_block() -> None:
    """They had become one replay of all blocks, whose peak was more than twice as high."""
    profile = autockpt.profile(gpt2().train(), tokens(500), mode="fake")
    for budget in ("lowest", "100GB"):
        every = autockpt.solve(profile, budget, solver="all")
        for solver in ("none", "chain", "auto"):
            pinned = autockpt.solve(profile, budget, solver=solver, recompute="transformer.h.*", seconds=1.0)
            if solver == "none" or budget == "lowest":
                assert pinned.peak_bytes <= 1.01 * every.peak_bytes
            assert len(pinned.segments) >= 12


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
