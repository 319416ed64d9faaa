"""Tells when a tensor is read, without a mode: while it is watched, the tensor has a class of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..._torch import private


def watch(tensor: Tensor, read: Callable[[], object]) -> None:
    """Call `read` before the first function that reads `tensor`, a plain one. That ends the watch, see `unwatch`."""
    if type(tensor) is _Watched:
        tensor._told.append(read)
    else:
        tensor._told = [read]  # type: ignore[attr-defined]
        tensor.__class__ = _Watched


def unwatch(tensor: Tensor) -> None:
    """End the watch: give a tensor its plain class back."""
    if type(tensor) is _Watched:
        tensor.__class__ = Tensor  # type: ignore[assignment]
        del tensor._told


class _Watched(Tensor):
    """The class of a plain tensor while it is watched. Functions that a hollow tensor can answer are no reads."""

    _told: list[Callable[[], object]]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = [each for each in tree_leaves((args, kwargs)) if type(each) is _Watched] if func not in _LOOKS else []
        for each in found:
            told = each._told if type(each) is _Watched else []  # one tensor may be given twice
            unwatch(each)
            for read in told:
                read()
        if found:
            return func(*args, **kwargs)
        with private.plain_subclasses():
            return func(*args, **kwargs)


_LOOKS = frozenset(
    (
        *(getattr(Tensor, each).__get__ for each in ("shape", "dtype", "device", "requires_grad", "ndim")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.__len__),
    )
)
