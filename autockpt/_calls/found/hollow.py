"""Hollow tensors: tensors without values, for what a replay does not read, such as the result of a skipped unit."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..._data.errors import ReplayError
from ..._torch import private

SKIPPED = "the result of a call that its plan skips"

_Look: TypeAlias = "tuple[tuple[Any, ...], tuple[int, ...], int, torch.dtype]"
"""Shape, strides, offset of the first element, and dtype."""


class Hollow(Tensor):
    """A tensor without values: shape, strides, dtype and device of the real one.

    Views of it are hollow too. Operators that read only its shape, such as `zeros_like`, work as usual. Any other
    operator raises an error.
    """

    _look: _Look
    _meta: Tensor | None
    _what: str

    __torch_function__ = private.plain_torch_function  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, look: _Look, device: torch.device, *, what: str = SKIPPED, requires_grad: bool = False) -> Hollow:
        new = private.tensor_without_storage(cls, look, device, requires_grad=requires_grad)
        new._look, new._meta, new._what = look, None, what
        return new

    @classmethod
    def of(cls, meta: Tensor, device: torch.device, what: str) -> Hollow:
        """Return one that looks like `meta`, a tensor on the meta device; `what` names it in errors."""
        new = cls((meta.shape, meta.stride(), int(meta.storage_offset()), meta.dtype), device, what=what)
        new._meta = meta
        return new

    @property
    def meta(self) -> Tensor:
        """A tensor on the meta device that looks like it. It is made when first needed: handing out needs none."""
        if self._meta is None:
            shape, stride, _, dtype = self._look
            self._meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return self._meta

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func is _DETACH:  # a dozen in a block, so this is fast; views are of the first argument
            viewed, *others = args
            found, device, what = func(viewed.meta, *others, **kwargs), viewed.device, viewed._what
            alone = isinstance(found, Tensor)
            return Hollow.of(found, device, what) if alone else [Hollow.of(each, device, what) for each in found]
        hollow = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Hollow))  # also in a list
        if func.overloadpacket in _SHAPE_ONLY:
            device = hollow.device
            empty = tree_map_only(Hollow, lambda each: torch.empty_like(each.meta, device=device), (args, kwargs))
            return func(*empty[0], **empty[1])
        raise ReplayError(f"a replay needs {hollow._what}, for {func}. Keep that call.")


_DETACH = torch.ops.aten.detach.default

_SHAPE_ONLY = frozenset(
    getattr(torch.ops.aten, how.format(what))
    for what in ("empty", "zeros", "ones", "full")
    for how in ("{}_like", "new_{}")
)


class Shape:
    """The look of a tensor that a replay does without, such as a skipped unit's result."""

    __slots__ = ("_device", "_dtype", "_requires_grad", "_shape", "_stride", "_what")

    def __init__(self, tensor: Tensor, what: str = SKIPPED) -> None:
        """Take the look of a tensor; `what` names it in the error if something reads it."""
        self._what = what
        self._shape, self._stride = private.geometry(tensor)
        self._dtype, self._device, self._requires_grad = tensor.dtype, tensor.device, tensor.requires_grad

    def leaf(self) -> Hollow:
        """Return a hollow tensor, as a leaf of a new graph."""
        look = (self._shape, self._stride, 0, self._dtype)
        return Hollow(look, self._device, what=self._what, requires_grad=self._requires_grad)
