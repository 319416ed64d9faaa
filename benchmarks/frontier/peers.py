"""The peers, each by a function that makes a model train its way until the context ends."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.frontier.blocks import find_blocks
from benchmarks.frontier.methods import Applied, Method, NotHere, patched
from benchmarks.frontier.sac import Estimate, milp, selective
from tests.zoo import Case

__all__ = ["COMPILED", "peers"]

COMPILED = "compile"

recomputed = functools.partial(checkpoint, use_reentrant=False)
Way = Callable[[Case], AbstractContextManager[Applied]]


def peers() -> list[Method]:
    """Return every peer with every setting; those made by one call share what they find out about a model."""
    estimate = Estimate()
    found = [Method(family="plain", setting="", apply=plain)]
    for every in (1, 2, 3):
        said = "all blocks" if every == 1 else f"every {every} blocks"
        found.append(Method(family="transformers", setting=said, apply=functools.partial(transformers, every=every)))
    for length in (1, 2, 3):
        way = functools.partial(uniform, length=length)
        found.append(Method(family="uniform", setting=f"runs of {length}", apply=way))
    for share in (0.25, 0.5, 0.75):
        found.append(Method(family="block", setting=f"first {share:.0%}", apply=functools.partial(first, share=share)))
    for segments in (2, 4, 8):
        way = functools.partial(sequential, segments=segments)
        found.append(Method(family="checkpoint_sequential", setting=f"{segments} segments", apply=way))
    for share in (0.25, 0.5, 0.75):
        way = functools.partial(selective, estimate=estimate, share=share)
        found.append(Method(family="sac_ilp", setting=f"{share}", apply=way, asked=share))
    for share in (0.8, 0.6, 0.4):
        way = functools.partial(milp, estimate=estimate, share=share)
        found.append(Method(family="sac_milp", setting=f"{share:.0%}", apply=way))
    for share in (0.2, 0.5, 0.8, 1.0):
        way = functools.partial(compiled, budget=share)
        found.append(Method(family=COMPILED, setting=f"{share}", apply=way, asked=share))
    return found


@contextmanager
def plain(case: Case) -> Iterator[Applied]:
    """Recompute nothing: shows the noise."""
    yield Applied(case=case)


@contextmanager
def transformers(case: Case, *, every: int) -> Iterator[Applied]:
    """Turn on transformers' own switch."""
    model: Any = case.model
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise NotHere("not a transformers model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it has a new name
        try:
            model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
            yield Applied(case=case)
        finally:
            if model.is_gradient_checkpointing:
                model.gradient_checkpointing_disable()


@contextmanager
def uniform(case: Case, *, length: int) -> Iterator[Applied]:
    """Recompute all blocks, in runs of `length`: Megatron's uniform method."""
    runs = [blocks[at : at + length] for blocks in find_blocks(case.model) for at in range(0, len(blocks), length)]
    with patched({module: forward for run in runs for module, forward in _run(run).items()}):
        yield Applied(case=case)


@contextmanager
def first(case: Case, *, share: float) -> Iterator[Applied]:
    """Recompute the first blocks, each by itself: Megatron's block method."""
    blocks = [block for blocks in find_blocks(case.model) for block in blocks]
    chosen = blocks[: round(share * len(blocks))]
    with patched({block: functools.partial(recomputed, block.forward) for block in chosen}):
        yield Applied(case=case)


@contextmanager
def sequential(case: Case, *, segments: int) -> Iterator[Applied]:
    """Run a sequence by `checkpoint_sequential`."""
    model = case.model
    if not isinstance(model, nn.Sequential):
        raise NotHere("not an nn.Sequential")
    layers = list(model)

    def forward(input: torch.Tensor) -> Any:
        return checkpoint_sequential(layers, segments, input, use_reentrant=False)

    with patched({model: forward}):
        yield Applied(case=case)


@contextmanager
def compiled(case: Case, *, budget: float) -> Iterator[Applied]:
    """Compile the whole model with a memory budget; the first step compiles."""
    import torch._functorch.config as functorch

    torch._dynamo.reset()  # also forgets that a dispatch mode once sent this code to eager
    try:
        with functorch.patch(activation_memory_budget=budget):
            model: Any = torch.compile(case.model, backend="aot_eager")
            other = replace(case, model=model)
            began = time.perf_counter()
            other.step()
            yield Applied(case=other, facts={"planning_seconds": time.perf_counter() - began})
    finally:
        torch._dynamo.reset()


def _run(blocks: Sequence[nn.Module]) -> dict[nn.Module, Callable[..., Any]]:
    """Let the first of some blocks run them all, recomputed as one, and the others hand on what it returned.

    Every block gets the first one's other arguments, as in a loop over equal layers.
    """
    forwards = [block.forward for block in blocks]
    results: list[Any] = []

    def chain(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        out = None
        for forward in forwards:
            out = forward(hidden, *args, **kwargs)
            hidden = out[0] if isinstance(out, tuple) else out
        return out

    def head(*args: Any, **kwargs: Any) -> Any:
        out = recomputed(chain, *args, **kwargs)
        results[:] = [out] * (len(blocks) - 1)
        return out

    def follower(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        out = results.pop()
        if hidden is not (out[0] if isinstance(out, tuple) else out):
            raise NotHere("a block's result is not what the next block is given")
        return out

    return {block: follower if index else head for index, block in enumerate(blocks)}
