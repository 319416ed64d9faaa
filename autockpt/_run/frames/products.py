"""Products: what a unit makes by multiplying something by a tensor that it saves, and a replay makes again that way.

    forward   x ─▶ [draw noise, x * noise] ─▶ y        the noise is saved, and stays with autograd
    replay    x ─▶ [       x * noise     ] ─▶ y        one multiplication, bit for bit the same

That a tensor is such a product its own autograd node tells, which knows the factor that it saved and where the other
one came from: an argument of the unit, or the saved result of an operator inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ... import _torch_private
from .hollow import Hollow, hollow
from .slots import Kept

__all__ = ["Product", "product_of"]

Factor: TypeAlias = int | Kept
"""The number of an argument of the unit, or a tensor that the unit saved."""


class Product:
    """A product that a unit made, with its factors in place of itself."""

    __slots__ = ("_device", "_dtype", "_factors", "_geometry", "_place")

    def __init__(self, tensor: Tensor, factors: tuple[Factor, Factor], place: int) -> None:
        self._factors = factors
        self._place = place  # of the one that has a gradient
        self._geometry = _torch_private.geometry(tensor)
        self._dtype = tensor.dtype
        self._device = tensor.device

    def again(self, arguments: Sequence[Tensor]) -> Tensor:
        """Multiply again; hollow where the unit's argument is."""
        factors = [arguments[each] if isinstance(each, int) else each.tensor() for each in self._factors]
        if any(isinstance(factor, Hollow) for factor in factors):
            return hollow(*self._geometry, self._dtype, self._device)
        _torch_private.push_hooks(_dropped, _never)
        try:  # as forward's it has a node, so that what follows may change it in place
            factor = factors[self._place]
            noded = torch.empty(0, dtype=factor.dtype, device=factor.device, requires_grad=True).clone()
            noded.data = factor  # its node holds nothing: that of a leaf holds the leaf
            factors[self._place] = noded
            return torch.mul(*factors)
        finally:
            _torch_private.pop_hooks()


def product_of(tensor: Tensor, arguments: Sequence[Tensor]) -> Product | None:
    """Return what a replay can make `tensor` from, which a unit made that was given these arguments.

    Args:
        tensor: what an operator returned; no view.
        arguments: of the unit.

    Returns:
        The product; None where it is none, or one of which a factor will not be at hand.
    """
    node = tensor.grad_fn
    if node is None or node.name() != "MulBackward0" or type(tensor) is not Tensor or not tensor.is_floating_point():
        return None
    if tensor.storage_offset() or _torch_private.version(tensor):
        return None
    edges = node.next_functions
    into = [place for place, (inner, _) in enumerate(edges) if inner is not None]
    if len(into) != 1:
        return None  # neither factor is a mere number to autograd, or both are
    place = into[0]
    # The node saves the factor that needs no gradient, since the gradient of the other is a multiple of it.
    noise = _torch_private.packed(node, ("other", "self")[place])
    other = _factor(*edges[place], arguments)
    if other is None or not isinstance(noise, Kept):
        return None
    found = arguments[other] if isinstance(other, int) else other.tensor()
    if not found.dtype is noise.tensor().dtype is tensor.dtype:
        return None
    return Product(tensor, (other, noise) if place == 0 else (noise, other), place)


def _dropped(tensor: Tensor) -> None:
    """Save nothing: no gradient is taken of what a replay makes."""


def _never(nothing: None) -> Tensor:
    raise AssertionError("a gradient was taken of a product that a replay made")


def _factor(node: Any, output: int, arguments: Sequence[Tensor]) -> Factor | None:
    """Return the factor that an edge of the graph leads to."""
    for number, argument in enumerate(arguments):
        if not argument.requires_grad:
            continue
        own = argument.grad_fn
        if getattr(node, "variable", None) is argument if own is None else (own, argument.output_nr) == (node, output):
            return number
    result = None if output else _torch_private.packed(node, "result")
    return result if isinstance(result, Kept) else None
