"""Saved tensors that no kernel has written, or not whole: what is in them is whatever was in memory before.

    flash attention              rng_state, unused      written only where something is dropped
    memory-efficient attention   seed, offset           the same, and they lie on the CPU
                                 log-sum-exp            rows up to a multiple of 32, of which the last are padding
    the flash-attn package       rng_state              two integers, written only where something is dropped

Two replays that make the same bits there do so by chance. So no comparison goes by them: of an attention it goes by
what looks like its queries, which is the queries, keys, values and the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from ... import _torch_private
from .saved import Slot

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


def attentions(results: Iterable[torch.Tensor], since: int) -> set[int]:
    """Return the numbers of attention's nodes behind some results, as far as nodes were made `since` a number.

    O(nodes), a microsecond each.
    """
    todo, seen, found = [result.grad_fn for result in results], set(), set[int]()
    while todo:
        node = todo.pop()
        if node is None or node in seen or (number := _torch_private.node_number(node)) < since:
            continue
        seen.add(node)
        if node.name().startswith(ATTENTION):
            found.add(number)
        todo.extend(target for target, _ in node.next_functions)
    return found


def written(
    wrong: Sequence[tuple[int, Slot]], alive: Iterable[tuple[int, Slot]], nodes: Collection[int]
) -> list[tuple[int, Slot]]:
    """Return those of some slots by which a comparison goes.

    Args:
        wrong: slots of a frame, with their numbers, for which its replay made other bits.
        alive: all slots of the frame.
        nodes: numbers of attention's nodes in it.
    """
    looks = {
        (slot.proof.node, *_look(slot.value))
        for _, slot in alive
        if slot.proof is not None and slot.value is not None and slot.proof.requires_grad
    }
    return [(number, slot) for number, slot in wrong if not _is_unwritten(slot, nodes, looks)]


def _is_unwritten(slot: Slot, nodes: Collection[int], looks: Collection[tuple[object, ...]]) -> bool:
    value, proof = slot.value, slot.proof
    if value is None or proof is None:
        return False
    is_state = value.dtype in INTEGERS and value.numel() <= STATE_ELEMENTS and not value.is_cpu
    return is_state or (proof.node in nodes and (proof.node, *_look(value)) not in looks)


def _look(tensor: torch.Tensor) -> tuple[torch.dtype, int]:
    return tensor.dtype, tensor.dim()
