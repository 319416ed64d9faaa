"""Attention: which kind runs, and the states of a generator that it saves and nothing writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.fake_cuda.device import Options, set_options, watching

KINDS = {"flash": "flash_attention", "efficient": "efficient_attention", "math": "aten::bmm"}


def attend(inputs: list[Tensor], **given: Any) -> Tensor:
    query, key, value = inputs
    return functional.scaled_dot_product_attention(query, key, value, **given)


def queries(dtype: torch.dtype = torch.float32, length: int = 7) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 2, length, 8).to("cuda", dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize(
    ("dtype", "given", "kind"),
    [
        (torch.bfloat16, {}, "flash"),
        (torch.float16, {"is_causal": True}, "flash"),
        (torch.float32, {}, "efficient"),
        (torch.bfloat16, {"attn_mask": True}, "efficient"),
        (torch.float32, {"dropout_p": 0.1}, "math"),
    ],
)
@pytest.mark.usefixtures("bfloat16")
def test_the_kind_is_that_which_a_gpu_would_choose(dtype: torch.dtype, given: dict[str, Any], kind: str) -> None:
    inputs = queries(dtype)
    if "attn_mask" in given:
        given = {"attn_mask": torch.zeros(7, 7, dtype=dtype, device="cuda")}
    with watching() as ran:
        attend(inputs, **given)
    assert KINDS[kind] in {each.operator for each in ran}


@pytest.mark.parametrize("kind", ["flash", "efficient"])
@pytest.mark.parametrize("length", [7, 32, 33])
def test_its_gradients_are_those_of_plain_products(kind: Literal["flash", "efficient"], length: int) -> None:
    found = []
    kinds: tuple[Literal["flash", "efficient", "math"], ...] = (kind, "math")
    for each in kinds:
        set_options(Options(attention=each))
        inputs = queries(length=length)
        attend(inputs, is_causal=True).square().sum().backward()
        found.append([each.grad for each in inputs])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("kind", "uninitialised"),
    [
        ("flash", {(torch.uint64, (2,), "cuda"), (torch.uint64, (), "cuda")}),
        ("efficient", {(torch.int64, (), "cpu")}),
    ],
)
def test_it_saves_what_nothing_has_written(kind: Literal["flash", "efficient"], uninitialised: set[Any]) -> None:
    """The same step twice saves the same bits, but for these."""
    set_options(Options(attention=kind))

    def saved() -> list[Tensor]:
        kept: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.detach().clone())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            attend(queries())
        return kept

    differ = {
        (one.dtype, tuple(one.shape), one.device.type)
        for one, other in zip(saved(), saved(), strict=True)
        if one.numpy(force=True).tobytes() != other.numpy(force=True).tobytes()
    }
    padded = {(torch.float32, (2, 2, 32), "cuda")} if kind == "efficient" else set()
    assert differ == uninitialised | padded


@pytest.fixture
def each_time() -> Iterator[None]:
    """Let torch say each time what it says once in a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("each_time", "deterministic")
def test_where_steps_are_to_repeat_themselves_none_attends_by_a_kernel_that_does_not() -> None:
    """Tests fail there by torch's warning of it."""
    with watching() as ran:
        attend(queries()).sum().backward()
    assert KINDS["math"] in {each.operator for each in ran}
    set_options(Options(attention="efficient"))
    with pytest.warns(UserWarning, match="defaults to a non-deterministic algorithm"):
        attend(queries()).sum().backward()
