"""How others train in less memory: each gives the step of a subject that trains its way, until the context ends."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.frontier.blocks import find_blocks
from benchmarks.frontier.methods import patched
from benchmarks.gpu.rows import NotHere
from benchmarks.gpu.steps import Step, Subject

__all__ = ["METHODS", "TORCH", "TRANSFORMERS", "Way", "every_layer"]

Way = Callable[[Subject], AbstractContextManager[Step]]

ATTENTION = ("attn", "self_attn", "attention")
"""What transformers calls the attention of a block."""

COMPILE_BUDGET = 0.5
"""Share of what is saved that `torch.compile` may save; one, since it compiles for a minute or more."""


def plain(of: Subject) -> AbstractContextManager[Step]:
    """Recompute nothing: shows the noise."""
    return nullcontext(of.step)


@contextmanager
def every_layer(of: Subject, *, every: int = 1) -> Iterator[Step]:
    """Turn on transformers' own switch, for every layer or for one in `every`."""
    model: Any = of.model
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = [each for each in model.modules() if getattr(each, "gradient_checkpointing", None) is True]
    layers = [each for each in layers if each is not model and hasattr(each, "_gradient_checkpointing_func")]
    try:
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = number % every == 0
        yield of.step
    finally:
        model.gradient_checkpointing_disable()


@contextmanager
def every_block(of: Subject) -> Iterator[Step]:
    """Recompute each block by torch's checkpoint, as a person would write it."""
    way = functools.partial(checkpoint, use_reentrant=False)
    with patched({block: functools.partial(way, block.forward) for block in _blocks(of.model)}):
        yield of.step


@contextmanager
def selective(of: Subject) -> Iterator[Step]:
    """Keep what matrix products and attention make in each block, recompute the rest: torch's selective policy."""
    aten = torch.ops.aten
    kept = {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    way = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)
    with patched({block: functools.partial(way, block.forward) for block in _blocks(of.model)}):
        yield of.step


@contextmanager
def remat(of: Subject) -> Iterator[Step]:
    """Recompute each block but for its attention, by regions of `torch_remat`."""
    if importlib.util.find_spec("torch_remat") is None:
        raise NotHere("torch_remat is not installed")
    torch_remat: Any = importlib.import_module("torch_remat")
    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for number, block in enumerate(_blocks(of.model)):
        attention = next((child for name, child in block.named_children() if name in ATTENTION), None)
        if attention is None:
            raise NotHere("a block has no attention of a known name")
        forwards[attention] = functools.partial(_kept, torch_remat, attention.forward)
        forwards[block] = torch_remat.checkpoint(region_name=f"block.{number}")(block.forward)
    with patched(forwards):
        yield of.step


def _kept(remat: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a part of a block whose saves stay; its first result is handed to what is recomputed."""
    hidden, *others = remat.region(forward, "attention", recompute=False)(*args, **kwargs)
    remat.recompute_needs_tensor(hidden)
    return (hidden, *others)


class Compiled:
    """The model of a subject, compiled with a memory budget once for all pairs."""

    def __init__(self) -> None:
        self._compiled: Any = None

    @contextmanager
    def __call__(self, of: Subject) -> Iterator[Step]:
        """Train the compiled model; the first step compiles."""
        import torch._functorch.config as functorch

        with functorch.patch(activation_memory_budget=COMPILE_BUDGET):
            if self._compiled is None:
                backend = "inductor" if of.device.type == "cuda" else "aot_eager"
                self._compiled = torch.compile(of.model, backend=backend)
            yield functools.partial(of.step, self._compiled)


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [block for blocks in find_blocks(model) for block in blocks]


TORCH, TRANSFORMERS = "torch, every block", "transformers, every layer"

METHODS: Mapping[str, Callable[[], Way]] = {
    "plain": lambda: plain,
    TRANSFORMERS: lambda: every_layer,
    "transformers, every second": lambda: functools.partial(every_layer, every=2),
    TORCH: lambda: every_block,
    "torch, selective": lambda: selective,
    "torch_remat, attention kept": lambda: remat,
    f"torch.compile, budget {COMPILE_BUDGET}": Compiled,
}
"""Makes each anew for a row."""
