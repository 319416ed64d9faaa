"""Tensors that custom autograd functions keep on their own ``ctx``: autograd neither saves them, nor sees them go."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..._calls.values import tensors
from ..._torch import private


def kept_on_ctx(output: object) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield, for each custom function behind some outputs, its name and what attributes of its ``ctx`` hold.

    O(nodes of the graph).
    """
    for node in private.python_nodes(each.grad_fn for each in tensors(output)):
        held = tensors(list(vars(node).values()))
        if held:
            yield type(node).__name__.removesuffix("Backward"), held
