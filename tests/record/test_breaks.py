"""One test for each way in which recording a step was found to break from outside, named after what went wrong."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import (
    BigBirdConfig,
    BigBirdForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import autockpt
from tests.toys.chains import InTurn, Nested
from tests.toys.told import Told, around, with_linear

WIDTH = 16


def lowest_share(profile: autockpt.Profile) -> float:
    """The lowest peak that any plan reaches, of the plain one."""
    plan = autockpt.solve(profile, "lowest", solver="articulation")
    return plan.peak_bytes / plan.plain_peak_bytes


def first_call_differs(own: Told, x: Tensor) -> Tensor:
    """Scales what it gives from the second call on."""
    scale = 3.0 if own.started else 1.0
    own.started = True
    return torch.tanh(own.linear(x) * scale)


@pytest.mark.parametrize("lazily", [True, False])
def test_a_module_whose_first_call_differs_is_kept_and_trains_as_without_a_plan(lazily: bool) -> None:
    """Losses were compared, and the stand-in for one that is not told is always 0: gradients were off by 236 %."""

    def train(budget: bool) -> list[Tensor]:
        torch.manual_seed(0)
        middle = (with_linear(first_call_differs, WIDTH, started=False) for _ in range(2))
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *middle, nn.Linear(WIDTH, 1))
        x = torch.randn(64, WIDTH)
        if budget:
            given: dict[str, Any] = {} if lazily else {"inputs": x, "loss": lambda out: out.square().mean()}
            autockpt.apply(model, budget="1GB" if lazily else "lowest", **given)
        found = []
        for _ in range(6):
            model(x).square().mean().backward()
            found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            model.zero_grad()
        return found

    assert all(map(torch.equal, train(budget=True), train(budget=False)))


def test_a_model_whose_first_forward_swaps_modules_is_planned_as_it_is_from_then_on() -> None:
    """BigBird does, on short sequences: nearly all of its calls were refused, and no budget below plain was met."""
    torch.manual_seed(0)
    config = BigBirdConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    model = BigBirdForMaskedLM(config).train()
    ids = torch.randint(10, 480, (8, 64))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    new = lowest_share(autockpt.profile(model, batch))
    model(**batch)
    assert new < 0.5 and lowest_share(autockpt.profile(model, batch)) < 0.5


def llama() -> nn.Module:
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
            vocab_size=500,
        )
    )
    return model


def t5() -> nn.Module:
    model: nn.Module = T5ForConditionalGeneration(
        T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4, vocab_size=500, decoder_start_token_id=0)
    )
    return model


@pytest.mark.parametrize("make", [llama, t5])
def test_recording_leaves_no_key_value_cache_behind(make: Any) -> None:
    """Each recording kept what a call was given to compare it, caches with all their keys, until the process ended."""
    torch.manual_seed(0)
    model, ids = make().train(), torch.randint(5, 400, (8, 64))
    batch = {"input_ids": ids, "labels": ids}

    def alive() -> int:
        gc.collect()
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

    model(**batch).loss.backward()
    model.zero_grad()
    before = alive()
    autockpt.profile(model, batch)
    assert alive() == before


def test_with_a_cache_models_go_about_as_low_as_without() -> None:
    """Attention was refused for being given a cache: the lowest share of Llama was 0.63 for 0.44."""
    torch.manual_seed(0)
    model, ids = llama().train(), torch.randint(5, 400, (8, 64))
    shares = [
        lowest_share(autockpt.profile(model, {"input_ids": ids, "labels": ids, "use_cache": cache}))
        for cache in (True, False)
    ]
    assert shares[0] < shares[1] + 0.1


def wide(children: int) -> nn.Module:
    """Many children, called one after the other."""
    return InTurn((nn.Linear(WIDTH, WIDTH) for _ in range(children)), lambda _, layer, x: F.gelu(layer(x)))


@pytest.mark.parametrize(
    ("build", "calls"),
    [
        pytest.param(lambda: wide(600), 601, id="wide"),
        pytest.param(lambda: Nested(150, WIDTH), 300, id="nested"),
        pytest.param(lambda: wide(5000), 5001, id="very wide", marks=pytest.mark.sweep),
    ],
)
def test_wide_and_deep_models_are_recorded(build: Callable[[], nn.Module], calls: int) -> None:
    """Five thousand children never ended; 150 modules in one another raised a RecursionError."""
    assert len(autockpt.profile(build(), torch.randn(4, WIDTH)).calls) == calls


def test_a_deep_model_is_the_first_that_a_process_records() -> None:
    """Torch imported its compiler inside the innermost module, and a RecursionError came of it."""
    script = """
        import torch, autockpt

        class Nested(torch.nn.Module):
            def __init__(self, depth):
                super().__init__()
                self.inner = Nested(depth - 1) if depth else torch.nn.Linear(4, 4)

            def forward(self, x):
                return self.inner(x).tanh()

        autockpt.profile(Nested(150), torch.randn(2, 4))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


class TrainsInBackward(torch.autograd.Function):
    """Runs its layer again in backward, by itself, as reversible networks do."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, x: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            out: Tensor = layer(x)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.layer(x), gradient)
        return None, x.grad


@pytest.mark.parametrize("accumulating", [False, True])
def test_gradients_that_a_backward_adds_by_itself_do_not_outlive_the_recording(accumulating: bool) -> None:
    """Reversible layers and Reformer do: the first step's gradients were two or eight times too large."""
    reversible = around(nn.Linear(WIDTH, WIDTH), TrainsInBackward.apply)
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), reversible, nn.Linear(WIDTH, 1)), torch.randn(8, WIDTH)
    if accumulating:
        model(x).sum().backward()
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    autockpt.profile(model, x, loss=torch.sum)
    for parameter, (gradient, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient
        assert gradient is None or (value is not None and torch.equal(gradient, value))


def trains_itself(own: Told, x: Tensor) -> Any:
    """Takes its step inside forward, and gives on what leads nowhere."""
    out = own.linear(x)
    out.square().mean().backward()
    return out.detach()


def test_gradients_of_an_attempt_that_is_refused_are_taken_back() -> None:
    """Each attempt to plan added to them."""
    model = nn.Sequential(with_linear(trains_itself, WIDTH), nn.Linear(WIDTH, 1))
    with pytest.raises(autockpt.ProfilingError):
        autockpt.profile(model, torch.randn(8, WIDTH))
    assert all(parameter.grad is None for parameter in model.parameters())


def calls_itself(own: Told, x: Tensor, depth: int = 3) -> Any:
    """A tree of calls of the model by the model."""
    if not depth:
        return torch.tanh(own.leaf(x))
    return own.join(torch.cat([own(x, depth - 1), own(x * 0.5, depth - 1)], -1)).tanh()


def test_plans_of_a_model_that_calls_itself_can_be_applied() -> None:
    """Plans had the inner calls of the root in them, which none can patch."""
    leaf, join = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    model, x = Told(calls_itself, leaf=leaf, join=join), torch.randn(64, WIDTH)
    plan = autockpt.solve(autockpt.profile(model, x, loss=torch.sum), "lowest")
    assert any("inside its own forward" in refusal.reason for refusal in plan.refused)
    autockpt.apply(model, plan=plan)
    model(x).sum().backward()


def test_a_later_forward_of_a_loop_is_called_so() -> None:
    """It was said to be called inside the model's own forward."""
    model, batch = Told(lambda own, x: torch.tanh(own.leaf(x)), leaf=nn.Linear(WIDTH, WIDTH)), torch.randn(64, WIDTH)
    autockpt.apply(model, "lowest")
    for _ in range(5):
        (model(batch).square().mean() + model(batch * 0.5).square().mean()).backward()
    plan: Any = autockpt.plan_of(model)
    (reason,) = (refusal.reason for refusal in plan.refused if refusal.call == "#1")
    assert "a later forward of the model itself, called by the loop in the same step" in reason


def switches_hooks_off(own: Told, x: Tensor) -> Any:
    """Wants no hooks on what it saves."""
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return own.linear(x).tanh()


def uses_threads(own: Told, x: Tensor) -> Any:
    """Runs its parts in threads."""
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda part: part(x), own.parts)
    return one + other


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (switches_hooks_off, "switches saved-tensor hooks off"),
        (uses_threads, "threads of its own"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_cannot_be_recorded_is_named(act: Callable[..., Any], said: str) -> None:
    """Errors of torch came through, or the profiler was blamed."""
    model = with_linear(act, WIDTH, parts=nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)))
    with pytest.raises(autockpt.ProfilingError, match=said):
        autockpt.profile(model, torch.randn(4, WIDTH))


def passes_nested(own: Told, x: Tensor) -> Any:
    """Passes a nested tensor without a shape on."""
    return torch.nested.to_padded_tensor(own.linear(torch.nested.as_nested_tensor([x[:2], x[2:]])), 0.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_without_a_shape_is_recorded() -> None:
    """It was refused, and in a training step the process was aborted."""
    model = with_linear(passes_nested, WIDTH)
    assert any(each.name == "linear" for each in autockpt.profile(model, torch.randn(4, WIDTH)).calls)
    assert autockpt.verify(model, torch.randn(4, WIDTH), plan=autockpt.Plan.of(["linear"])).exact


@pytest.mark.filterwarnings("ignore")
def test_a_wrapper_that_compiles_may_be_recomputed() -> None:
    """It has no train flag of its own: a raw KeyError came out of the user's forward."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)]
    wrapped: Any = torch.compile(layers[1], backend="eager")
    model = nn.Sequential(layers[0], wrapped, layers[2])
    x = torch.randn(8, WIDTH)
    model(x).sum().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    autockpt.apply(model, plan=autockpt.Plan.of([["0", "1"]]))
    model(x).sum().backward()
    assert all(map(torch.equal, plain, [p.grad for p in model.parameters() if p.grad is not None]))
