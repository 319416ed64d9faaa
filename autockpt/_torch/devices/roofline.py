"""The work of operators, bytes moved and floating-point operations, to predict their seconds on a named device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from ..._data.hardware.devices import Roofline


class Work(NamedTuple):
    """The work of an operator.

    Attributes:
        moved_bytes: bytes of all tensors that it reads or makes.
        flops: floating-point operations; 0 for an operator that is bound by memory bandwidth.
        half: whether its elements have at most 16 bits.
    """

    moved_bytes: int
    flops: int = 0
    half: bool = False

    def seconds(self, device: Roofline) -> float:
        """Seconds on a device: those of computing or those of moving bytes, whichever are more."""
        rate = device.half_flops if self.half else device.single_flops
        return max(self.moved_bytes / device.bytes_per_second, self.flops / rate)


def work_of(
    op: Any, given: tuple[tuple[Any, ...], dict[str, Any]], output: Any, tensors: Sequence[torch.Tensor]
) -> Work | None:
    """Return the work of an operator; None if it neither computes nor moves bytes.

    Args:
        op: the operator.
        given: its arguments, by position and by name.
        output: what it returned.
        tensors: the tensors in its arguments, then those in its output.
    """
    packet = op.overloadpacket
    if op.is_view or packet in NO_WORK or op.namespace == "c10d":  # between devices, of which no roofline tells
        return None
    moved_bytes, (args, kwargs) = sum(tensor.numel() * tensor.itemsize for tensor in tensors), given
    if packet in FLOPS:
        flops = FLOPS[packet](*args, **kwargs)
    elif packet in flop_registry:
        flops = flop_registry[packet](*args, **kwargs, out_val=output)
    else:
        return Work(moved_bytes)
    return Work(moved_bytes, flops, half=tensors[0].itemsize <= 2)


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Scores, and the values weighted by them, for every head of the queries, as if nothing were masked."""
    return 2 * _scores(query, key) * int(query.shape[-1] + value.shape[-1])


def _attention_backward_flops(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """The scores again, then the gradients of scores, values, queries and keys."""
    return 2 * _scores(query, key) * int(3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: Any, key: Any) -> int:
    return int(query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2])


def _grouped_flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """A grouped product: groups share the rows, columns or inner indices, unless both sides have a group dimension."""
    groups = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return 2 * groups * int(a.shape[-2]) * int(a.shape[-1]) * int(b.shape[-1])


FLOPS: Mapping[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    torch.ops.aten._grouped_mm: _grouped_flops,
}
"""Operators that torch's own `flop_registry` lacks."""

NO_WORK = frozenset(
    {
        torch.ops.aten._unsafe_view,
        torch.ops.aten.empty,
        torch.ops.aten.empty_like,
        torch.ops.aten.empty_strided,
        torch.ops.aten.new_empty,
        torch.ops.aten.new_empty_strided,
    }
)
"""Operators that neither compute nor move bytes, besides views."""
