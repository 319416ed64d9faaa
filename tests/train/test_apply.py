"""What `apply` refuses before anything trains, and what it says of a loop that it cannot plan for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from tests.doors import watching_replays
from tests.rows import crossed


def stack() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4)))


def compiled_in_place() -> nn.Module:
    model = stack()
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (
            lambda: nn.Linear,
            {"budget": "1MB"},
            "a model is a torch.nn.Module, or several are in a list; this is <cl",
        ),
        (lambda: 3, {"budget": "1MB"}, "a model is a torch.nn.Module, or several are in a list; this is 3"),
        (stack, {"plan": 3}, r"plan is 3; give a Plan, such as autockpt.Plan.load"),
        (stack, {"plan": {"segments": []}}, "plan is {'segments': ..}; give a Plan"),
        (nn.GELU, {"budget": "1MB"}, "GELU has no parameter"),
        (
            lambda: stack().requires_grad_(False),
            {"budget": "1MB", "inputs": torch.ones(2, 16)},
            "no parameter that requires a gradient, and no input does",
        ),
        (stack, {"budget": "1MB", "loss": 3}, "loss is 3; it must be a function"),
        (stack, {"budget": "1MB", "loss": 3, "inputs": torch.ones(2, 16)}, "loss is 3; it must be a function"),
        (lambda: torch.compile(stack(), backend="eager"), {"budget": "1MB"}, "compiled as a whole.*Compile it after"),
        (lambda: torch.compile(stack(), backend="eager"), {"plan": autockpt.Plan()}, "compiled as a whole"),
        (compiled_in_place, {"budget": "1MB"}, "compiled as a whole"),
    ],
)
def test_what_cannot_be_planned_is_refused_at_once(make: Callable[[], Any], given: dict[str, Any], words: str) -> None:
    model = make()
    with pytest.raises(autockpt.NotApplicable, match=words):
        autockpt.apply(model, **given)
    assert not isinstance(model, nn.Sequential) or "forward" not in vars(model)


@pytest.mark.parametrize("pins", [{"keep": 5}, {"recompute": [None]}])
def test_pins_that_are_no_texts_are_refused_at_once(pins: dict[str, Any]) -> None:
    with pytest.raises(autockpt.PinError, match="a pin is a pattern of qualified names"):
        autockpt.apply(stack(), "1MB", **pins)


@pytest.mark.parametrize("function", [autockpt.remove, autockpt.plan_of])
def test_what_is_no_module_has_no_plan(function: Callable[[Any], object]) -> None:
    with pytest.raises(autockpt.NotApplicable, match=r"a model is a torch\.nn\.Module"):
        function(None)


def test_a_plan_that_is_given_may_be_put_on_a_model_that_compiles_itself() -> None:
    model = autockpt.apply(compiled_in_place(), plan=autockpt.Plan.of(["1"]))
    model(torch.randn(4, 16)).sum().backward()
    assert autockpt.plan_of(model) is not None


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda model: torch.compile(model, backend="eager"), "before compiling"),
    ],
    ids=["compiled afterwards"],
)
def test_why_no_step_is_planned_is_said(
    prepare: Callable[[Any], Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = autockpt.apply(stack(), "1MB")
    trained = prepare(model)
    for _ in range(4):
        trained(torch.randn(4, 16)).sum().backward()
    said = [record.getMessage() for record in caplog.records if record.name == "autockpt"]
    assert len(said) == 1
    assert words in said[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, as it loads what derives forwards
def test_a_transform_of_torch_func_is_named_where_it_keeps_a_step_from_being_planned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was said that no training forward was seen, of a model whose forward had just run."""
    model, batch = autockpt.apply(stack(), "1MB"), torch.randn(4, 16)
    for _ in range(4):
        torch.func.jvp(model, (batch,), (torch.ones_like(batch),))[1].sum().backward()
    said = [record.getMessage() for record in caplog.records if record.name == "autockpt"]
    assert len(said) == 1 and "inside a transform of torch.func" in said[0]


def test_a_checkpoint_around_the_model_is_named_where_it_keeps_a_step_from_being_planned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was said that no training forward was seen, of a model whose forward had just run."""
    model, batch = autockpt.apply(stack(), "1MB"), torch.randn(4, 16)
    for _ in range(4):
        torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False).sum().backward()
    said = [record.getMessage() for record in caplog.records if record.name == "autockpt"]
    assert len(said) == 1 and "inside torch.utils.checkpoint" in said[0]


def test_verify_before_there_is_a_plan_says_when_there_is() -> None:
    with pytest.raises(autockpt.BudgetError, match="its plan is made as the third step begins, or at once"):
        autockpt.verify(autockpt.apply(stack(), "1MB"), torch.randn(4, 16))


def test_a_model_that_trains_in_eval_mode_under_a_plan_is_told_of_no_missing_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, batch = stack().eval(), torch.randn(64, 16)
    autockpt.apply(model, "lowest", inputs=batch, loss=lambda outputs: outputs.square().mean())
    caplog.clear()
    with watching_replays(model) as replayed:
        for _ in range(2):
            model(batch).square().mean().backward()
    assert replayed and caplog.messages == []


def compiled_whole(model: nn.Module) -> Any:
    torch.compiler.reset()  # what was compiled of the same code before counts against a limit
    return torch.compile(model, backend="aot_eager")


def compiled_itself(model: nn.Module) -> Any:
    torch.compiler.reset()
    model.compile(backend="aot_eager")
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@crossed(at_once=[True, False], begin=[nn.Module.eval, compiled_whole, compiled_itself], steps=[False, True])
def test_where_a_plan_is_on_no_step_is_said_to_run_without(
    begin: Callable[[nn.Module], Any], steps: bool, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is compiled whole after `apply` runs under the plan; training in eval mode gets one of its own."""
    model, batch = stack(), torch.randn(64, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    autockpt.apply(model, "lowest", loss=torch.sum, inputs=batch if at_once else None)

    def step(model: Any) -> None:
        model(batch).sum().backward()
        if steps:
            optimizer.step()
        optimizer.zero_grad()

    for _ in range(0 if at_once else 3):
        step(model)
    plan, trained = autockpt.plan_of(model), begin(model)
    assert plan is not None
    for _ in range(4):
        step(trained)
    assert (autockpt.plan_of(model) is plan) == (begin is not nn.Module.eval)
    assert autockpt.plan_of(model) is not None and "without a plan" not in caplog.text
    if begin is nn.Module.eval:
        assert caplog.text == ""
    elif at_once:
        assert caplog.text.count("the plan is in what was compiled") == 1
