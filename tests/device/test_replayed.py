"""What a replay finds in autograd's own thread is what its forward found: streams, context variables, thread locals."""

from __future__ import annotations

import contextvars
import itertools
import threading
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autockpt
from tests.device.models import beside
from tests.device.twin import Batch, outcome, plain_and_planned
from tests.fake_cuda.device import Options, set_options, watching
from tests.toys.chains import feed_forward
from tests.toys.told import Told, around

SCALE = contextvars.ContextVar("SCALE", default=1.0)
LOCAL = threading.local()
RUNS = itertools.count()


def by_context(inner: nn.Module, x: Tensor) -> Any:
    """Reads a context variable."""
    return inner(x * SCALE.get()).tanh() * SCALE.get()


def sets_context(inner: nn.Module, x: Tensor) -> Any:
    """Sets it around its forward, as autocast-like contexts of libraries do."""
    token = SCALE.set(0.5)
    try:
        return inner(x)
    finally:
        SCALE.reset(token)


def scaled() -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    inner = (around(feed_forward(64), by_context) for _ in range(5))
    return around(nn.Sequential(*inner), sets_context).cuda(), {"x": torch.randn(256, 64).cuda()}


def test_a_context_variable_has_the_value_that_forward_found(caplog: pytest.LogCaptureFixture) -> None:
    """Backward of a device runs in a thread of autograd's, where no context variable is set."""
    found = plain_and_planned(scaled)
    assert outcome(found) == [True] * 6
    assert found.plan is not None
    assert found.plan.segments
    assert caplog.messages == []


def test_a_thread_local_that_backward_cannot_see_keeps_its_call_and_names_it(caplog: pytest.LogCaptureFixture) -> None:
    def build() -> tuple[nn.Module, Batch]:
        torch.manual_seed(0)
        local = [Told(lambda own, x: functional.gelu(x * getattr(LOCAL, "scale", 1.0)).sin()) for _ in range(5)]
        inner = (nn.Sequential(nn.Linear(64, 256), each, nn.Linear(256, 64)) for each in local)
        return nn.Sequential(*inner).cuda(), {"input": torch.randn(256, 64).cuda()}

    LOCAL.scale = 0.5
    try:
        plan = autockpt.Plan.of([f"{number}.1" for number in range(5)])
        found = plain_and_planned(build, apply=lambda run, _: autockpt.apply(run.model, plan=plan))
    finally:
        del LOCAL.scale
    assert outcome(found) == [True] * 6
    assert any("saved other values in its replay than in its forward" in each for each in caplog.messages)


def written(*, writes: bool) -> Told:
    """Has a constant, and a history that it writes past every counter of versions, as kernels do."""

    def act(own: Told, input: Tensor) -> Any:
        history = own.meta["history"]
        scale = history.max() if writes else 1.0
        if writes:
            history.data.copy_(torch.cat([input.detach().abs().max().reshape(1), history[:-1]]))
        return (own.inner(input * scale) * own.meta["scale"]).tanh()

    meta = {"scale": torch.full((64,), 0.5).cuda(), "history": torch.ones(8).cuda()}
    return Told(act, inner=feed_forward(64), meta=meta)


@pytest.mark.parametrize("writes", [False, True])
def test_what_a_kernel_writes_through_a_pointer_is_written_once_and_constants_are_read_again(
    writes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    histories: list[list[Tensor]] = []

    def build() -> tuple[nn.Module, Batch]:
        torch.manual_seed(0)
        made = [written(writes=writes) for _ in range(5)]
        histories.append([each.meta["history"] for each in made])
        return nn.Sequential(*made).cuda(), {"input": torch.randn(256, 64).cuda()}

    plan = autockpt.Plan.of([str(number) for number in range(5)])
    found = plain_and_planned(build, apply=lambda run, _: autockpt.apply(run.model, plan=plan))
    assert outcome(found) == [True] * 6
    plain, planned = histories[-2:]
    assert all(map(torch.equal, plain, planned))
    assert ("kept from now on" in caplog.text) == writes


@pytest.mark.filterwarnings("ignore:.*AccumulateGrad.*stream")
def test_a_model_with_a_stream_of_its_own_trains_as_plainly() -> None:
    def build() -> tuple[nn.Module, Batch]:
        torch.manual_seed(0)
        return beside().cuda(), {"x": torch.randn(256, 64).cuda()}

    found = plain_and_planned(build, share=0.5)
    assert outcome(found) == [True] * 6
    assert found.plan is not None
    assert found.plan.segments


def test_a_replay_runs_on_the_stream_of_its_forward() -> None:
    """Segments whose calls ran on the side stream are replayed there, whatever stream the asking node has."""
    torch.manual_seed(0)
    model, batch = beside().cuda(), {"x": torch.randn(256, 64).cuda()}
    plan = autockpt.Plan.of([["blocks.1#0"], ["blocks.3#0"]])
    autockpt.apply(model, plan=plan)
    outputs = model(**batch)
    with watching() as backward:
        outputs.square().mean().backward()
    replayed = [each.stream for each in backward if each.operator == "aten::gelu"]
    assert replayed == [model.stream.stream_id] * 2  # type: ignore[union-attr]


class Noisy(torch.autograd.Function):
    """Its gradient differs from run to run, as that of a kernel which adds in an order of its own."""

    @staticmethod
    def forward(input: Tensor) -> Tensor:
        return input.clone()

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Saves nothing."""

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0] * (1 + next(RUNS) / 16)


def attending(own: Told, input: Tensor) -> Tensor:
    """Attention in half precision, whose gradient does not repeat itself."""
    query, key, value = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in own.project(input).chunk(3, -1))
    litter = [torch.full((2,), next(RUNS), device="cuda") for _ in range(8)]
    del litter  # what is in these blocks is what nobody writes in those that attention takes
    made: Tensor = functional.scaled_dot_product_attention(query, key, value)
    noisy: Tensor = Noisy.apply(made.transpose(1, 2).flatten(2))  # type: ignore[no-untyped-call]
    return input + noisy


@pytest.mark.parametrize("attention", ["flash", "efficient"])
def test_what_attention_leaves_unwritten_is_no_fault_where_its_gradient_does_not_repeat_itself(
    attention: Literal["flash", "efficient"],
) -> None:
    """An H100 said `different`: of each replay verify compared the state of a generator that no kernel had written."""
    set_options(Options(attention=attention))
    torch.manual_seed(0)
    model = nn.Sequential(*(Told(attending, project=nn.Linear(64, 192)) for _ in range(3))).to("cuda", torch.bfloat16)
    batch = torch.randn(2, 29, 64, dtype=torch.bfloat16).cuda()
    found = autockpt.verify(model, batch, plan=autockpt.Plan.of(["0", "1", "2"]), loss=lambda out: out.square().mean())
    assert (found.verdict, found.wrong_replays, found.replays) == ("not repeatable", (), 3)


def attends(inner: nn.Module, input: Tensor) -> Tensor:
    """Attention that saves memory keeps the state of its generator on the host, which a rehearsal has to have too."""
    scale = LOCAL.scale  # of which autograd's thread has none
    heads = inner(input * scale).view(4, 64, 4, 16).transpose(1, 2)
    mask = torch.ones(64, 64, dtype=torch.bool, device=input.device).tril()
    made: Tensor = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
    return made.transpose(1, 2).reshape(256, 64)


def test_attention_in_a_call_that_fails_in_its_rehearsal(caplog: pytest.LogCaptureFixture) -> None:
    def build() -> tuple[nn.Module, Batch]:
        torch.manual_seed(0)
        return nn.Sequential(*(around(feed_forward(64), attends) for _ in range(5))).cuda(), {
            "input": torch.randn(256, 64).cuda()
        }

    LOCAL.scale = 0.5
    try:
        plan = autockpt.Plan.of([str(number) for number in range(5)])
        found = plain_and_planned(build, apply=lambda run, _: autockpt.apply(run.model, plan=plan))
    finally:
        del LOCAL.scale
    assert outcome(found) == [True] * 6
    assert any("fails in its replay (AttributeError" in each for each in caplog.messages)
