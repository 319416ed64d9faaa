"""Bad arguments of the public functions: one short error of the library's own each, before a model is changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import autockpt
from tests.handmade import chain_profile

MOST_LETTERS = 700
"""Of a message: what was asked, what was found, what to do."""

BATCH = torch.randn(32, 16)


class WithFree(nn.Sequential):
    """A stack of blocks in a list that is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3))
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class BadRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no text of this one")


def refused(call: Callable[[], object], words: str, kind: type[Exception] = autockpt.AutockptError) -> str:
    with pytest.raises(kind, match=words) as found:
        call()
    assert isinstance(found.value, autockpt.AutockptError)
    assert len(str(found.value)) <= MOST_LETTERS
    return str(found.value)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ("9" * 5000, "cannot read '999"),
        ("9" * 5000 + "GB", "cannot read '999"),
        ("1." + "0" * 5000 + "GB", "cannot read '1.000"),
        ("1" * 4301 + "%", "cannot read '111"),
        (10**5000, "a budget of a int is more bytes than any memory has"),
        (10**30, "is more bytes than any memory has"),
        ("1" * 30 + "GB", "is more bytes than any memory has"),
        ("24G", r"unknown unit 'G' in the budget '24G'; did you mean '24GB'\?"),
        ("0.6", "did you mean '60%'"),
        (0.6, r"cannot read 0.6 as a budget; did you mean '60%'"),
        (math.nan, "cannot read nan as a budget; accepted: bytes"),
        (1e9, r"as a whole number: int\(1000000000.0\)"),
        (numpy.int64(10**9), r"as a whole number: int\("),
        (BadRepr(), "cannot read a BadRepr as a budget"),
        (torch.ones(10**6), "cannot read tensor"),
        ([], "cannot read"),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_budget_that_is_none(budget: Any, words: str) -> None:
    refused(lambda: autockpt.apply(WithFree(), budget), words, autockpt.BudgetError)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": None, "max_overhead": 10**400}, "a finite ratio above 0"),
        ({"budget": None, "max_overhead": []}, "a finite ratio above 0"),
        ({"solver": []}, r"no solver is called \[\]"),
        ({"solver": {}}, r"no solver is called \{\}"),
        ({"seconds": "3"}, "a number of seconds such as 3.0, and not for '3'"),
        ({"seconds": None}, "a number of seconds such as 3.0, and not for None"),
        ({"keep": None}, "a pin is a pattern"),
        ({"plan_for": [1]}, r"the largest shape of each argument by its name.*found \[1\]"),
        ({"plan_for": {"x": 8}}, "the largest shape of each argument"),
        ({"plan_for": {"x": (-1, 32)}}, "the largest shape of each argument"),
        ({"plan_for": {"x": ("a", 32)}}, "the largest shape of each argument"),
        ({"plan_for": {"x": (1.5, 32)}}, "the largest shape of each argument"),
        ({"optimizer": []}, "found an empty list"),
        ({"optimizer": [3]}, "found a int"),
        ({"optimizer": "adamq"}, "did you mean 'adam'"),
        ({"loss": "mse"}, "loss is 'mse'; it must be a function"),
        ({"check": []}, r"check is \[\]; it can be"),
        ({"budget": None, "plan": autockpt.Plan.of(["layers"])}, "layers#0 is a ModuleList, which is never called"),
    ],
    ids=str,
)
@pytest.mark.parametrize("at_once", [False, True])
def test_what_apply_refuses_before_a_step(given: dict[str, Any], words: str, at_once: bool) -> None:
    model = WithFree()
    batch = {"inputs": BATCH} if at_once and "plan" not in given else {}
    refused(lambda: autockpt.apply(model, **{"budget": "1MB"} | batch | given), words)
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inputs": 3}, r"forward raised TypeError on \(3\): .*must be Tensor, not int.*Give a batch"),
        ({"inputs": []}, "forward raised TypeError"),
        ({"inputs": "abc"}, r"forward raised TypeError on \('abc'\)"),
        ({"inputs": {}}, "forward raised TypeError on no arguments: .*missing 1 required positional argument: 'x'"),
        ({"inputs": {"z": BATCH}}, r"forward raised TypeError on \(z=float32\[32, 16\]\): .*unexpected keyword"),
        ({"inputs": (BATCH, BATCH)}, r"on \(float32\[32, 16\], float32\[32, 16\]\): .* positional arguments"),
        ({"inputs": BATCH.long()}, r"forward raised RuntimeError on \(int64\[32, 16\]\)"),
        ({"inputs": torch.randn(32, 17)}, r"forward raised RuntimeError on \(float32\[32, 17\]\): .*shapes"),
        ({"loss": lambda one, two: one}, "the loss raised TypeError on the outputs .*missing 1 required.*Give a funct"),
        ({"loss": lambda outputs: None}, "the loss must be a tensor with one element"),
    ],
    ids=range(10),
)
@pytest.mark.parametrize("function", [autockpt.apply, autockpt.profile, autockpt.verify], ids=lambda f: f.__name__)
def test_a_batch_or_a_loss_on_which_the_model_fails(function: Any, given: dict[str, Any], words: str) -> None:
    model, more = WithFree(), {} if function is autockpt.profile else {"budget": "min"}
    message = refused(lambda: function(model, **{"inputs": BATCH} | more | given), words, autockpt.ProfilingError)
    assert "forward" not in vars(model) and message.endswith(".") | message.startswith("the loss must")


def test_an_error_of_the_models_own_class_goes_by_as_it_is() -> None:
    class Own(RuntimeError):
        pass

    class Raises(WithFree):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise Own("mine")

    with pytest.raises(Own, match="mine"):
        autockpt.apply(Raises(), "min", inputs=BATCH)


@pytest.mark.parametrize(
    "segments",
    [3, "layers.0", [3], [None], [["layers.0", 3]], [[]], ["layers.0#x"], ["layers.0#-1"], ["a#b#1"]],
    ids=str,
)
def test_a_plan_by_hand_that_names_no_calls(segments: Any) -> None:
    refused(lambda: autockpt.Plan.of(segments), "segment|names no call", autockpt.InvalidFile)


def test_other_functions_refuse_what_makes_no_sense() -> None:
    profile, model = chain_profile(), WithFree()
    plan = autockpt.solve(profile, "min")
    for other in (None, "gpt2-xl", 3, model):
        refused(partial(autockpt.solve, other, "min"), "a profile is what autockpt.profile")  # type: ignore[arg-type]
        refused(partial(autockpt.frontier, other), "a profile is what")  # type: ignore[arg-type]
        refused(partial(plan.timeline, other), "a profile is what")  # type: ignore[arg-type]
    given: Any
    refused(partial(autockpt.solve, profile, "50%", total_bytes="8GB"), "memory is known")  # type: ignore[arg-type]
    for given in (1, "3", 2.5, None):
        refused(partial(autockpt.frontier, profile, points=given), "points is a whole number of at least 2")
    for given in (3, "8GB"):
        refused(partial(autockpt.frontier, profile, budgets=given), "budgets is a list such as")
    for given in ("3", None, math.nan, -1):
        refused(partial(autockpt.frontier, profile, seconds=given), "a number of seconds")
    for given in (0, "x", 1.5, None):
        refused(partial(autockpt.verify, model, BATCH, plan=plan, steps=given), "at least one step")
    refused(partial(autockpt.verify, model, BATCH, plan="x"), "plan is 'x'; give a Plan")  # type: ignore[arg-type]
    refused(partial(autockpt.verify, 3, BATCH, plan=plan), "a model is a torch.nn.Module")  # type: ignore[arg-type]
    for given in (0, "x", 1.5):
        refused(partial(autockpt.max_batch, model, torch.randn, "1MB", most=given), "most is a whole number")
    refused(partial(autockpt.max_batch, model, 3, "1MB"), "make_inputs is 3; give a function")  # type: ignore[arg-type]
    refused(partial(autockpt.max_batch, 3, torch.randn, "1MB"), "torch.nn.Module")  # type: ignore[arg-type]
    refused(partial(autockpt.measure, 3), "step is 3; give a function")  # type: ignore[arg-type]
    for given in ("x", []):
        refused(partial(autockpt.measure, lambda: None, device=given), "device is .*; give one such as 'cpu'")


def test_no_message_lists_names_without_end() -> None:
    """A plan of another model names hundreds of calls that this one does not have."""
    names = [f"transformer.encoder.layers.{i}.attention.output.dense" for i in range(500)]
    message = refused(lambda: autockpt.apply(WithFree(), plan=autockpt.Plan.of(names)), "the plan was made for another")
    assert "and 494 more" in message


def test_what_a_batch_makes_the_model_say_is_cut_short() -> None:
    class Talks(WithFree):
        def forward(self, *_: torch.Tensor) -> torch.Tensor:
            raise ValueError("no such shape " * 1000)

    refused(partial(autockpt.profile, Talks(), (BATCH,) * 40), "forward raised ValueError")


def test_an_overhead_in_percent_is_a_slip() -> None:
    """A ratio is asked for: 15 would be fifteen plain steps more in each one."""
    model = torch.nn.Linear(4, 4)
    said = refused(lambda: autockpt.apply(model, max_overhead=15), "did you mean 0.15", autockpt.BudgetError)
    assert "The most that is looked for is 5" in said
    assert autockpt.apply(model, max_overhead=8.5) is model  # as a toy's may be


def test_a_model_is_no_step_to_measure() -> None:
    refused(lambda: autockpt.measure(torch.nn.Linear(4, 4)), "give a function that runs a step")
