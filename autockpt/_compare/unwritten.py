"""Saved tensors that no kernel has written, or not whole: what is in them is whatever was in memory before.

    flash attention              rng_state, unused      written only where something is dropped
    memory-efficient attention   seed, offset           the same, and they lie on the CPU
                                 log-sum-exp            rows up to a multiple of 32, of which the last are padding
    the flash-attn package       rng_state              two integers, written only where something is dropped

Two replays that make the same bits there do so by chance. So no comparison goes by them: of an attention it goes by
what looks like its queries, which is the queries, keys, values and the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch

from .. import _torch_private

ATTENTION = (
    "ScaledDotProductFlashAttentionBackward",
    "ScaledDotProductEfficientAttentionBackward",
    "ScaledDotProductCudnnAttentionBackward",
    "FlashAttentionBackward",
    "EfficientAttentionBackward",
    "CudnnAttentionBackward",
)
"""Beginnings of the names of autograd's nodes whose kernels do so: those of devices, and not that of the CPU."""

STATE_ELEMENTS = 2
"""A generator's seed and offset. What indexes by as few integers shows in what it has selected."""

INTEGERS = (torch.int64, torch.uint64)


class Remade(NamedTuple):
    """What a replay made for a saved tensor.

    Attributes:
        value: the tensor.
        node: number of the node of autograd that saved it in forward.
        requires_grad: whether a gradient flows through it.
    """

    value: torch.Tensor
    node: int
    requires_grad: bool


def attentions(nodes: Iterable[Any], since: int) -> set[int]:
    """Return the numbers of attention's nodes among some nodes and those behind them, as far as made `since` a number.

    O(nodes), a microsecond each.
    """
    todo, seen, found = list(nodes), set(), set[int]()
    while todo:
        node = todo.pop()
        if node is None or node in seen or (number := _torch_private.node_number(node)) < since:
            continue
        seen.add(node)
        if node.name().startswith(ATTENTION):
            found.add(number)
        todo.extend(target for target, _ in node.next_functions)
    return found


def is_unwritten(made: Remade, others: Iterable[Remade], nodes: Collection[int]) -> bool:
    """Return whether no comparison goes by a saved tensor.

    Args:
        made: what a replay made for it.
        others: what the same replay made, this one among it.
        nodes: numbers of attention's nodes.
    """
    value = made.value
    if value.dtype in INTEGERS and value.numel() <= STATE_ELEMENTS and not value.is_cpu:
        return True
    if made.node not in nodes:
        return False
    looks = {_look(other.value) for other in others if other.node == made.node and other.requires_grad}
    return _look(value) not in looks


def _look(tensor: torch.Tensor) -> tuple[torch.dtype, int]:
    return tensor.dtype, tensor.dim()
