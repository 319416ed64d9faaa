"""Wrappers: tensors of subclasses that have their memory in tensors inside them, taken apart and made again.

jagged            values, offsets    values wait, offsets stay: torch tells jagged sizes apart by the offsets object
strided nested    one storage        it has no shape, and sizes of rows
DTensor           this rank's part
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .frames import here
from .ranks.sharded import is_distributed, like


class Apart(NamedTuple):
    """A wrapper taken apart.

    Attributes:
        inside: the tensors inside it that have memory. None of them is a wrapper.
        make: makes the wrapper, without a graph, of others in their places.
    """

    inside: tuple[Tensor, ...]
    make: Callable[[Sequence[Tensor]], Tensor]


def apart(tensor: Tensor) -> Apart | None:
    """Take a wrapper apart; return None for any other tensor, and for a wrapper that torch cannot make again."""
    if type(tensor) is Tensor:
        return _strided_nested(tensor) if tensor.is_nested else None
    if is_distributed(tensor):
        return _apart_recursively([here(tensor)], like(tensor))
    if (present := here(tensor)) is not tensor:  # a result of a collective that has arrived
        return _apart_recursively([present], lambda parts: parts)
    wrapper: Any = tensor
    return _traceable(wrapper) if is_traceable_wrapper_subclass(wrapper) else None


def _traceable(wrapper: Any) -> Apart | None:
    """Take apart a wrapper that torch can flatten and make again."""
    try:
        names, context = wrapper.__tensor_flatten__()
        every = {name: getattr(wrapper, name) for name in names}
    except AttributeError:  # a wrapper that is only being made
        return None
    kind: Any = type(wrapper)
    size, stride = wrapper.size(), wrapper.stride()
    # Where sizes are symbols, these are tied to a tensor object: another one with the same numbers would not do.
    tied = any(isinstance(each, torch.SymInt) for each in size)
    inner = [
        name for name, each in every.items() if isinstance(each, Tensor) and each.numel() and not _ties(each, tied)
    ]
    stays = {name: each for name, each in every.items() if name not in inner}

    def make(*given: Tensor) -> Tensor:
        again = {name: stays[name] if name in stays else given[inner.index(name)] for name in names}
        made: Tensor = kind.__tensor_unflatten__(again, context, size, stride)
        return made.detach() if made.requires_grad else made

    return _apart_recursively([every[name] for name in inner], make)


def _strided_nested(tensor: Tensor) -> Apart:
    """Take apart a strided nested tensor: its rows lie in one storage, and their sizes are tensors on the host."""
    storage = tensor.untyped_storage()
    length = storage.nbytes() // tensor.element_size()
    row = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (length,), (1,))
    rows = tensor._nested_tensor_size(), tensor._nested_tensor_strides(), tensor._nested_tensor_storage_offsets()
    return Apart((row,), lambda given: torch._nested_view_from_buffer(given[0], *rows))


def inside(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that a saved tensor counts and waits by: itself, or of a wrapper those inside it."""
    taken = apart(tensor)
    return (tensor,) if taken is None else taken.inside


def _ties(tensor: Tensor, tied: bool) -> bool:
    """Whether the sizes of the wrapper around a tensor may be tied to this very object."""
    return tied and not tensor.is_floating_point() and not tensor.is_complex()


def _apart_recursively(parts: list[Tensor], make: Callable[..., Tensor]) -> Apart:
    """Take apart a wrapper's inner tensors too, which may be wrappers themselves.

    Args:
        parts: the inner tensors.
        make: makes the wrapper of them. What is returned first makes the inner wrappers again, then calls this.
    """
    deeper = [apart(part) for part in parts]
    found: list[Tensor] = []
    for part, each in zip(parts, deeper, strict=True):
        found += (part,) if each is None else each.inside
    makes = [None if each is None else (each.make, len(each.inside)) for each in deeper]
    del parts, deeper

    def make_all(given: Sequence[Tensor]) -> Tensor:
        rest, own = list(given), []
        for each in makes:
            if each is None:
                own.append(rest.pop(0))
            else:
                own.append(each[0](rest[: each[1]]))
                del rest[: each[1]]
        return make(*own)

    return Apart(tuple(found), make_all)
