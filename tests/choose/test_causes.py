"""`Infeasible` names what stands at the lowest peak: who holds it, and what was refused and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.toys.told import Told

WIDTH, ROWS, BLOCKS = 64, 512, 6
HIDDEN_BYTES = ROWS * 4 * WIDTH * 4
MOST_LETTERS = 700


class Fused(torch.autograd.Function):
    """Keeps what it needs in attributes of its ``ctx``, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        ctx.hidden, ctx.x = x @ up, x
        ctx.save_for_backward(up, down)
        return torch.relu(ctx.hidden) @ down

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        up, down = ctx.saved_tensors
        inner = (gradients[0] @ down.T) * (ctx.hidden > 0)
        return inner @ up.T, ctx.x.T @ inner, torch.relu(ctx.hidden).T @ gradients[0]


def block(act: Callable[..., Any]) -> nn.Module:
    """A feed-forward block of which `act` says how its middle is made, and who keeps it."""
    shapes = ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    up, down = (nn.Parameter(torch.randn(shape) / 16) for shape in shapes)
    return Told(lambda own, x: x + act(own, own.norm(x)), up=up, down=down, norm=nn.LayerNorm(WIDTH))


def plain(own: Told, x: Tensor) -> Any:
    return nn.functional.gelu(x @ own.up) @ own.down


def on_ctx(own: Told, x: Tensor) -> Any:
    return Fused.apply(x, own.up, own.down)  # type: ignore[no-untyped-call]


def in_a_list(own: Told, x: Tensor) -> Any:
    """Keeps what it makes in a list that its forward fills anew."""
    hidden = nn.functional.gelu(x @ own.up)
    own.seen = [hidden]
    return hidden @ own.down


def caches_in_place(cache: Tensor) -> nn.Module:
    """Writes what it makes into a tensor that it is handed, as caches of keys and values are written."""

    def act(own: Told, x: Tensor) -> Any:
        hidden = nn.functional.gelu(x @ own.up)
        own.cache[: len(x)] = hidden.detach()
        return hidden @ own.down

    made = block(act)
    made.cache = cache
    return made


def refusal(make: Callable[[], nn.Module], step: Callable[[nn.Module, Tensor], None]) -> autockpt.Infeasible:
    model, x = nn.Sequential(*(make() for _ in range(BLOCKS))), torch.randn(ROWS, WIDTH)
    autockpt.apply(model, budget=int(1.1e6))
    with pytest.raises(autockpt.Infeasible) as caught:
        for _ in range(4):
            step(model, x)
    assert len(str(caught.value)) <= MOST_LETTERS, str(caught.value)
    parts = caught.value.parts
    assert sum(size for _, size in parts.named()) == parts.peak_bytes == caught.value.minimum_bytes
    return caught.value


def plainly(model: nn.Module, x: Tensor) -> None:
    model(x).square().mean().backward()
    model.zero_grad()


def holding(model: nn.Module, x: Tensor) -> None:
    outputs = model(x)
    outputs.square().mean().backward()
    model.zero_grad()


def test_tensors_on_the_ctx_of_a_function_are_named() -> None:
    """It was said that the caller held outputs, who held a loss."""
    error = refusal(lambda: block(on_ctx), plainly)
    (who, size), *_ = error.parts.holders
    assert who == "on the ctx of Fused" and size >= BLOCKS * HIDDEN_BYTES
    assert "held on the ctx of Fused" in str(error) and "give them to ctx.save_for_backward" in str(error)
    assert "held by the caller" not in str(error) and "let go of outputs" not in str(error)


def test_what_the_model_itself_keeps_is_named() -> None:
    error = refusal(lambda: block(in_a_list), plainly)
    assert "by something in the model (an attribute, a list, a cache): let go of them" in str(error)
    assert "held by the caller" not in str(error)


def test_outputs_that_the_caller_holds_are_still_told_of() -> None:
    error = refusal(lambda: block(plain), holding)
    assert error.parts.callers_bytes >= ROWS * WIDTH * 4
    assert "those that the caller holds are 128.00 KiB" in str(error)


def test_calls_that_were_refused_are_named_where_they_stand_at_the_peak() -> None:
    cache = torch.zeros(ROWS, 4 * WIDTH)
    error = refusal(lambda: caches_in_place(cache), plainly)
    ((which, size), *_) = error.parts.kept
    assert size >= (BLOCKS - 1) * HIDDEN_BYTES
    assert "changed in place" in which or "changes" in which or "reads a tensor" in which
    assert "Kept are " in str(error) and "0, 1 and 4 more" in which and which in str(error)


def test_kept_calls_that_could_run_again_have_a_reason_too() -> None:
    """It was said that activations of kept calls stand there, and neither of which calls nor why."""
    model, x = nn.Sequential(*(block(plain) for _ in range(BLOCKS))), torch.randn(ROWS, WIDTH)
    profile = autockpt.profile(model, x, loss=lambda out: out.square().mean())
    with pytest.raises(autockpt.Infeasible) as caught:
        autockpt.solve(profile, "1MB", keep="*")
    kept = caught.value.parts.kept
    assert sum(size for _, size in kept) == caught.value.parts.activation_bytes > 0
    assert kept[0][0].endswith("and 10 more (no lower plan was found that recomputes that too)")
    assert f" of {kept[0][0]}" in str(caught.value)


def test_nothing_is_named_that_is_not_there() -> None:
    error = refusal(lambda: block(plain), plainly)
    for never in ("ctx", "something in the model", "cannot run again"):
        assert never not in str(error)


def test_a_profile_remembers_who_holds_what(tmp_path: Any) -> None:
    model = nn.Sequential(*(block(on_ctx) for _ in range(2)))
    profile = autockpt.profile(model, torch.randn(ROWS, WIDTH), loss=torch.sum)
    held = profile.refused("tensor")
    assert set(held.values()) == {"on the ctx of Fused"}
    assert sum(profile.tensors.bytes[each] for each in held) >= 2 * HIDDEN_BYTES
    profile.save(tmp_path / "profile.json")
    assert autockpt.Profile.load(tmp_path / "profile.json").refused("tensor") == held
