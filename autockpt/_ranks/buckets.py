"""The buckets in which DistributedDataParallel adds gradients: memory of C++ that Python does not see."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import _torch_private as private


def data_parallel(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a model is, or that is around it and runs; None where there is none."""
    if isinstance(model, DistributedDataParallel):
        return model
    active = private.active_data_parallel()
    around = isinstance(active, DistributedDataParallel) and any(module is model for module in active.modules())
    return active if around else None  # type: ignore[return-value]


def bucket_bytes(model: nn.Module) -> int:
    """Return the bytes of the buckets around the model or over it: as many as those of its gradients."""
    wrapped = data_parallel(model) is not None
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad) if wrapped else 0


class Buckets:
    """The buckets around a model, or over it, in a step that is recorded.

    They are laid out anew once, as the second step of DistributedDataParallel begins, in other memory of the same size.

    Args:
        model: the model.

    Attributes:
        bytes: of all of them.
        hold_gradients: whether gradients are views of them (`gradient_as_bucket_view`).
    """

    def __init__(self, model: nn.Module) -> None:
        self.bytes, self._model, self._stay = bucket_bytes(model), model, _are_rebuilt(model)
        wrapper = data_parallel(model)
        self.hold_gradients = wrapper is not None and wrapper.gradient_as_bucket_view

    def among(self, made: Iterable[tuple[int, int]]) -> set[int]:
        """Return the keys of the buckets that were laid out anew; none where they are not all there.

        Args:
            made: key and size of what was made meanwhile and stays, from where buckets are.
        """
        left_bytes = self.bytes if _are_rebuilt(self._model) and not self._stay else 0
        found = set()
        for key, size in made:
            if size <= left_bytes:
                left_bytes -= size
                found.add(key)
        return set() if left_bytes else found


def _are_rebuilt(model: nn.Module) -> bool:
    wrapper = data_parallel(model)
    return wrapper is not None and private.has_rebuilt_buckets(wrapper)
