"""Hollow tensors: what a skipped leaf returns in a replay, since nothing that is needed reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ... import _torch_private
from ..._data.errors import ReplayError


class Hollow(Tensor):
    """A tensor without values: shape, strides, dtype and device of the real one.

    Views of it are hollow too, and what looks only at its shape (`zeros_like`) is as it would be; anything else fails.
    """

    meta: Tensor

    __torch_function__ = _torch_private.plain_torch_function  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, meta: Tensor, device: torch.device) -> Hollow:
        new = _torch_private.tensor_without_storage(cls, meta, device)
        new.meta = meta
        return new

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func is _DETACH:  # a dozen in a block: of its first argument, and fast
            viewed, *others = args
            found, device = func(viewed.meta, *others, **kwargs), viewed.device
            return Hollow(found, device) if isinstance(found, Tensor) else [Hollow(each, device) for each in found]
        device = next(each.device for each in (*args, *kwargs.values()) if isinstance(each, Hollow))
        if func.overloadpacket in _SHAPE_ONLY:
            empty = tree_map_only(Hollow, lambda each: torch.empty_like(each.meta, device=device), (args, kwargs))
            return func(*empty[0], **empty[1])
        raise ReplayError(f"a replay needs the result of a call that its plan skips, for {func}. Keep that call.")


_DETACH = torch.ops.aten.detach.default

_SHAPE_ONLY = frozenset(
    getattr(torch.ops.aten, how.format(what))
    for what in ("empty", "zeros", "ones", "full")
    for how in ("{}_like", "new_{}")
)


def shape_of(tensor: Tensor) -> Callable[[], Tensor]:
    """Return what makes a hollow tensor of a skipped leaf's result."""
    geometry = _torch_private.geometry(tensor)
    dtype, device, requires_grad = tensor.dtype, tensor.device, tensor.requires_grad

    def hollow() -> Tensor:
        meta = torch.empty_strided(*geometry, dtype=dtype, device="meta")
        return Hollow(meta, device).requires_grad_(requires_grad)

    return hollow
