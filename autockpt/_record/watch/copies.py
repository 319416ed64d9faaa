"""What calls were given, told by checksums: ranks that share layers may have the same, and keep a part of it each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..._calls.checksum import number_of
from ..._calls.layout import row_of, told_by_bytes


def sum_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return the checksum of the storage that some tensors share; 0 where none of them has a graph.

    Also 0 where bytes do not say all that they are, or are not there.
    """
    if not any(each.grad_fn is not None for each in tensors) or not all(map(told_by_bytes, tensors)):
        return 0
    return int(number_of(row_of(tensors[0]))) if tensors[0].untyped_storage().nbytes() else 0
