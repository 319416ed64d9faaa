"""Saved tensors that no kernel has written, or only in part: the rest is whatever was in memory before.

    flash attention              rng_state, unused      written only with dropout
    memory-efficient attention   seed, offset           the same, and they are on the CPU
                                 log-sum-exp            rows up to a multiple of 32, of which the last are padding
    the flash-attn package       rng_state              two integers, written only with dropout

Two replays make equal bits there only by chance, so these tensors are not compared. Of an attention node's saved
tensors only those are compared that have the dtype and dimensions of its queries: queries, keys, values and the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch

from ..._torch import private

ATTENTION = (
    "ScaledDotProductFlashAttentionBackward",
    "ScaledDotProductEfficientAttentionBackward",
    "ScaledDotProductCudnnAttentionBackward",
    "FlashAttentionBackward",
    "EfficientAttentionBackward",
    "CudnnAttentionBackward",
)
"""How the names of the autograd nodes begin whose kernels do so: those on devices, not the CPU's."""

STATE_ELEMENTS = 2
"""A generator's seed and offset. If so few integers are an index instead, what they select is still compared."""

INTEGERS = (torch.int64, torch.uint64)


class Remade(NamedTuple):
    """What a replay made for a saved tensor.

    Attributes:
        value: the tensor.
        node: number of the autograd node that saved it in forward.
        requires_grad: whether a gradient flows through it.
    """

    value: torch.Tensor
    node: int
    requires_grad: bool


def attentions(nodes: Iterable[Any], since: int) -> set[int]:
    """Return the numbers of the attention nodes in a graph, from some nodes on, back to nodes numbered `since`.

    O(nodes), a microsecond each.
    """
    todo, seen, found = list(nodes), set(), set[int]()
    while todo:
        node = todo.pop()
        if node is None or node in seen or (number := private.node_number(node)) < since:
            continue
        seen.add(node)
        if node.name().startswith(ATTENTION):
            found.add(number)
        todo.extend(target for target, _ in node.next_functions)
    return found


def is_unwritten(made: Remade, others: Iterable[Remade], nodes: Collection[int]) -> bool:
    """Return whether a saved tensor is not to be compared, since no kernel need have written it.

    Args:
        made: what a replay made for it.
        others: all that the same replay made, including `made`.
        nodes: numbers of the attention nodes.
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
