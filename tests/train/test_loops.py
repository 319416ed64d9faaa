"""Loops as people write them, plain and with a budget: bit for bit, from the first step on, and planned in the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from tests.doors import governor_of
from tests.toys.told import Told
from tests.zoo import gpt2

STEPS = 7

BATCH = torch.linspace(-1, 1, 256 * 32).reshape(256, 32)


def stack(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.Dropout(0.1)) for _ in range(6))
    )


def regions(reentrant: bool) -> nn.Module:
    """A part of it recomputes by itself."""
    return Told(
        lambda own, x: own.after(checkpoint(own.inside, x, use_reentrant=reentrant)), inside=stack(), after=stack(1)
    )


def compiled() -> nn.Module:
    """Parts of it are compiled, in both ways."""
    made = Told(lambda own, x: own.whole(own.parts(own.plain(x))), plain=stack(), parts=stack(1))
    made.parts[1].compile(backend="aot_eager")
    made.whole = torch.compile(stack(2), backend="aot_eager")
    return made


Loop = Callable[[nn.Module], Iterator[Tensor]]


def compiled_again(model: nn.Module) -> Iterator[Tensor]:
    """Torch compiles in a planned step: with nodes of autograd that are no calls of the model."""
    for number, loss in enumerate(usual(model)):
        yield loss
        if number == STEPS // 2:
            torch.compiler.reset()


def usual(model: nn.Module) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        loss = model(BATCH).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def scaled(model: nn.Module) -> Iterator[Tensor]:
    """The scaler lets the optimizer take no step in the one that is recorded."""
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(BATCH).square().mean()
        scaler.scale(loss).backward()
        if not step:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, torch.inf)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield loss.detach()


def closed(model: nn.Module) -> Iterator[Tensor]:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(BATCH).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        yield torch.as_tensor(optimizer.step(closure)).detach()


def backward_twice(model: nn.Module) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(BATCH).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def penalised(model: nn.Module) -> Iterator[Tensor]:
    """A gradient of a gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        batch = BATCH.clone().requires_grad_()
        outputs = model(batch)
        (gradient,) = torch.autograd.grad(outputs.sum(), batch, create_graph=True)
        loss = outputs.square().mean() + gradient.square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def targets(model: nn.Module) -> Iterator[Tensor]:
    """A forward without gradients, of the same model, in the midst of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        outputs = model(BATCH)
        with torch.no_grad():
            target = model(BATCH)
        loss = (outputs - target.mean()).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def evaluated(model: nn.Module) -> Iterator[Tensor]:
    for loss in usual(model):
        model.eval()
        with torch.no_grad():
            yield loss + model(BATCH).sum()
        model.train()


def in_backward(model: nn.Module) -> Iterator[Tensor]:
    """Each parameter is stepped as its gradient is ready."""
    optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in model.parameters()]
    for _ in range(STEPS):
        loss = model(BATCH).square().mean()
        loss.backward()
        yield loss.detach()
    for handle in handles:
        handle.remove()


def functional(model: nn.Module) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.func.functional_call(model, dict(model.named_parameters()), (BATCH,)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def failing(model: nn.Module) -> Iterator[Tensor]:
    for loss in usual(model):
        with pytest.raises(RuntimeError, match="shapes"):
            model(BATCH[:, :16])
        yield loss


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "loop", "budget"),
    [
        pytest.param(stack, usual, 1_500_000, id="as usual"),
        pytest.param(stack, scaled, 2_200_000, id="a gradient scaler"),
        pytest.param(stack, closed, 3_600_000, id="a closure"),
        pytest.param(lambda: regions(False), usual, 2_900_000, id="regions of its own"),
        pytest.param(lambda: regions(True), usual, 2_500_000, id="reentrant regions"),
        pytest.param(stack, backward_twice, 2_700_000, id="backward twice"),
        pytest.param(stack, penalised, 5_200_000, id="a penalty"),
        pytest.param(stack, targets, 1_600_000, id="targets without gradients"),
        pytest.param(stack, evaluated, 1_500_000, id="evaluation"),
        pytest.param(stack, in_backward, 1_700_000, id="an optimizer in backward"),
        pytest.param(stack, functional, 1_600_000, id="functional_call"),
        pytest.param(stack, failing, 1_500_000, id="forwards that fail"),
        pytest.param(compiled, usual, 4_000_000, id="compiled parts"),
        pytest.param(compiled, compiled_again, 4_000_000, id="parts that are compiled again"),
    ],
)
def test_every_step_is_the_plain_one_and_there_is_a_plan_in_the_end(
    make: Callable[[], nn.Module], loop: Loop, budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[list[Tensor]] = []
    plain, governed = make(), autockpt.apply(make(), budget)
    for model in (plain, governed):
        torch.compiler.reset()
        torch.manual_seed(5)
        losses = [loss.clone() for loss in loop(model)]
        found.append([*losses, *(each.detach().clone() for each in model.parameters()), torch.get_rng_state()])
    assert all(map(torch.equal, *found))
    plan = autockpt.plan_of(governed)
    assert plan is not None and plan.peak_bytes <= budget
    said = [record.getMessage() for record in caplog.records if record.name == "autockpt"]
    said = [each for each in said if "stand beside the model" not in each]  # the plain model and its gradients do
    assert said == ([plan.own_replays] if plan.own_replays else [])  # of regions of its own, and of nothing else


@pytest.mark.parametrize("context", ["hooks", "save_on_cpu"])
def test_saved_tensors_hooks_of_the_user_are_theirs_and_that_is_said(
    context: str, caplog: pytest.LogCaptureFixture
) -> None:
    def loop(model: nn.Module) -> Iterator[Tensor]:
        for _ in range(STEPS):
            model.zero_grad()
            rounding = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.half(), lambda half: half.float())
            with rounding if context == "hooks" else torch.autograd.graph.save_on_cpu():
                loss = model(BATCH).square().mean()
            loss.backward()
            yield from [each.grad.clone() for each in model.parameters() if each.grad is not None]

    plain, model = stack(), autockpt.apply(stack(), 1_500_000)
    torch.manual_seed(5)
    expected = list(loop(plain))
    torch.manual_seed(5)
    assert all(map(torch.equal, expected, loop(model)))
    assert [record.getMessage()[:19] for record in caplog.records] == ["saved_tensors_hooks"]
    assert autockpt.plan_of(model) is None


def deep(lots: list[int]) -> nn.Module:
    """Leaves blocks out, as a list of lots says."""

    def act(own: Told, hidden: Tensor) -> Tensor:
        for block in list(own.blocks)[: own.lots.pop(0)]:
            hidden = hidden + block(hidden)
        return hidden

    return Told(act, blocks=stack(), lots=lots)


def test_a_step_that_made_more_calls_than_its_recording_is_planned_for(caplog: pytest.LogCaptureFixture) -> None:
    depths = [2, 2, 2, 2, 6, 6, 6, 2]
    model = autockpt.apply(deep([2, *depths]), 1_800_000)
    decisions = []
    for _ in range(9):
        model.zero_grad()
        model(BATCH).square().mean().backward()
        governor: Any = governor_of(model)
        decisions.append(governor._step.decision.what)
    assert decisions[-4:] == ["Keep", "Record", "Replan", "Keep"]
    assert [record.getMessage()[:23] for record in caplog.records] == ["a step made other calls"]
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.segments


@pytest.mark.parametrize("stepping", [True, False], ids=["with an optimizer", "backward alone"])
def test_a_step_that_the_model_does_not_see_is_said_once(stepping: bool, caplog: pytest.LogCaptureFixture) -> None:
    class Lightning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = stack()

        def training_step(self, batch: Tensor) -> Tensor:
            loss: Tensor = self.body(batch).square().mean()
            return loss

    model = autockpt.apply(Lightning(), "1.5MB")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model.training_step(BATCH).backward()
        assert len(caplog.records) == 1  # from the first backward on
        if stepping:
            optimizer.step()
    assert "the step ran without a plan" in caplog.records[0].getMessage()


def test_a_forward_that_is_replaced_once_there_is_a_plan_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = autockpt.apply(deep([6] * 5), "1.5MB")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(10):
        if number == 5:
            assert not caplog.records
            model.forward = lambda batch: model.blocks(batch)
            assert governor_of(model) is None
        model(BATCH).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert "was replaced after apply" in caplog.records[0].getMessage()
    assert autockpt.plan_of(model) is not None


def test_what_was_removed_stays_off_where_another_forward_calls_it() -> None:
    model: Any = autockpt.apply(deep([6] * 9), "1.5MB")
    own, seen = model.forward, [False] + [True] * 8
    model.forward = lambda batch: own(batch) if seen.pop(0) else model.blocks(batch)
    model(BATCH).square().mean().backward()
    assert autockpt.plan_of(autockpt.remove(model)) is None
    for _ in range(8):
        model(BATCH).square().mean().backward()
    assert not any("forward" in vars(block) for block in model.blocks)


@pytest.mark.parametrize("after", ["forward", "backward"])
def test_a_step_that_was_begun_before_apply_is_not_said(after: str, caplog: pytest.LogCaptureFixture) -> None:
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(BATCH).square().mean()
    if after == "backward":
        loss.backward()
    autockpt.apply(model, "1.5MB")
    if after == "forward":
        loss.backward()
    for _ in range(4):
        optimizer.step()
        optimizer.zero_grad()
        model(BATCH).square().mean().backward()
    assert not caplog.records
    assert autockpt.plan_of(model) is not None


def test_a_process_may_end_in_the_midst_of_a_recording() -> None:
    """torch's profiler runs then, and crashed."""
    code = (
        "import torch, autockpt; m = autockpt.apply(torch.nn.Linear(8, 8), '1MB'); "
        "m(torch.randn(4, 8)).sum().backward()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_checkpointing_that_is_switched_on_later_is_switched_off_and_put_back(caplog: pytest.LogCaptureFixture) -> None:
    def model() -> Any:
        torch.manual_seed(0)
        return gpt2(n_layer=4, n_embd=32, vocab_size=100).train()

    tokens = torch.randint(100, (4, 64), generator=torch.Generator().manual_seed(0))

    def losses(model: Any) -> Iterator[Tensor]:
        torch.manual_seed(1)
        model.gradient_checkpointing_enable()
        for _ in range(4):
            model.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            yield loss.detach()

    expected, planned = list(losses(model())), autockpt.apply(model(), "lowest")
    assert all(map(torch.equal, expected, list(losses(planned))))
    assert not planned.is_gradient_checkpointing
    assert [record.getMessage()[:22] for record in caplog.records if record.name == "autockpt"] == [
        "gradient_checkpointing"
    ]
    plan = autockpt.plan_of(planned)
    assert plan is not None and plan.segments
    assert autockpt.remove(planned).is_gradient_checkpointing


def test_a_cache_that_is_kept_in_training_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = autockpt.apply(gpt2(n_layer=2, n_embd=32, vocab_size=100, use_cache=True).train(), "1GB")
    tokens = torch.randint(100, (2, 16))
    for _ in range(3):
        model(input_ids=tokens, labels=tokens).loss.backward()
    assert "model.config.use_cache = False" in caplog.text
