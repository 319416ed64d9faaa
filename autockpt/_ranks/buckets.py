"""The buckets in which DistributedDataParallel adds gradients: memory of C++ that Python does not see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .._torch import private


def data_parallel(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a model is, or that is around it and runs; None where there is none."""
    if isinstance(model, DistributedDataParallel):
        return model
    active = private.active_data_parallel()
    around = isinstance(active, DistributedDataParallel) and any(module is model for module in active.modules())
    return active if around else None  # type: ignore[return-value]


def wrappers(model: nn.Module) -> list[DistributedDataParallel]:
    """Return the DistributedDataParallel that a model is, or that is around it, and those that it has inside."""
    outer = data_parallel(model)
    inside = [each for each in model.modules() if isinstance(each, DistributedDataParallel) and each is not outer]
    return inside if outer is None else [outer, *inside]


def bucket_bytes(model: nn.Module) -> int:
    """Return the bytes that this model's gradients take in the buckets of wrappers around it or inside it."""
    own = {id(each): each for each in model.parameters() if each.requires_grad}
    wrapped = {id(each) for wrapper in wrappers(model) for each in wrapper.parameters()}
    return sum(each.nbytes for key, each in own.items() if key in wrapped)


def unseen_bytes(wrapper: DistributedDataParallel) -> int:
    """Return the bytes of a wrapper's buckets that Python cannot see: all, or 0 if gradients are views of them."""
    trained = [each for each in wrapper.parameters() if each.requires_grad]
    seen = wrapper.gradient_as_bucket_view and any(each.grad is not None for each in trained)
    return 0 if seen else sum(each.nbytes for each in trained)


@contextmanager
def as_in_step(model: nn.Module) -> Iterator[nn.Module]:
    """Yield what of a model may run without other ranks, inside as if its DistributedDataParallel ran around that.

    The compiler cuts graphs by the buckets of the one that runs.
    """
    if isinstance(model, DistributedDataParallel):
        with private.as_if_running(model):
            yield model.module
    else:
        yield model


class Buckets:
    """The buckets of the wrappers around a model or inside it, in a recorded step.

    DistributedDataParallel allocates them anew once, as its second step begins. The new memory has the same size.

    Args:
        model: the model.

    Attributes:
        bytes: of all of them.
        hold_gradients: whether gradients are views of them (`gradient_as_bucket_view`).
    """

    def __init__(self, model: nn.Module) -> None:
        self.bytes, self._wrappers = bucket_bytes(model), wrappers(model)
        self._stay = _are_rebuilt(self._wrappers)
        self.hold_gradients = any(each.gradient_as_bucket_view for each in self._wrappers)

    @property
    def rebuilt_bytes(self) -> int:
        """Bytes of those that were allocated anew since the step began; 0 if none were."""
        return self.bytes if not self._stay and _are_rebuilt(self._wrappers) else 0


def buckets_among(made: Iterable[tuple[int, int]], rebuilt_bytes: int) -> set[int]:
    """Return the keys of the buckets that were allocated anew; none unless all of their bytes are found.

    Args:
        made: key and size of each allocation that stays, in order. The search for buckets begins with the first.
        rebuilt_bytes: bytes of the buckets; 0 if none were allocated.
    """
    if not rebuilt_bytes:
        return set()
    every = [*made]
    # Those of one wrapper are allocated in a row. Those of several are not, if forwards come between.
    return _in_a_row(every, rebuilt_bytes) or _one_by_one(every, rebuilt_bytes)


def _in_a_row(made: Sequence[tuple[int, int]], n_bytes: int) -> set[int]:
    """Return the keys of the first allocations in a row that have so many bytes together."""
    first = total = 0
    for stop, (_, size) in enumerate(made, 1):
        total += size
        while total > n_bytes:
            total -= made[first][1]
            first += 1
        if total == n_bytes:
            return {key for key, _ in made[first:stop]}
    return set()


def _one_by_one(made: Iterable[tuple[int, int]], n_bytes: int) -> set[int]:
    """Return the keys of allocations that have so many bytes together; each that does not exceed it is taken."""
    found = set()
    for key, size in made:
        if size <= n_bytes:
            n_bytes -= size
            found.add(key)
    return set() if n_bytes else found


def _are_rebuilt(found: Iterable[DistributedDataParallel]) -> bool:
    return any(private.has_rebuilt_buckets(each) for each in found)
