"""FSDP2 for a model that shards nothing itself: its blocks, found by structure, and the root.

model           unit
  embedding       of the root
  layers
    0 … 31        a unit each: siblings of one class, with layers inside
  head            of the root
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from torch import nn
from torch.optim import Optimizer

from ..._torch import private


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model, in order: the outermost modules that have siblings of their class.

    A block has parameters in modules inside it. A single layer is no block: it is too small to gather by itself.
    """
    return list({id(each): each for each in _blocks(model)}.values())


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    children = list(module.children())
    kinds = Counter(type(child) for child in children if _is_deep(child))
    for child in children:
        if _is_deep(child) and kinds[type(child)] > 1:
            yield child
        else:
            yield from _blocks(child)


def _is_deep(module: nn.Module) -> bool:
    return any(next(child.parameters(), None) is not None for child in module.children())


def shard(model: nn.Module, optimizers: Iterable[Optimizer] = ()) -> None:
    """Make a model's blocks and its root units of FSDP2, over all ranks, and have optimizers train the shards."""
    before = dict(model.named_parameters())
    for each in (*blocks_of(model), model):
        private.shard(each)
    shards = {id(before[name]): parameter for name, parameter in model.named_parameters() if name in before}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [shards.get(id(each), each) for each in group["params"]]
