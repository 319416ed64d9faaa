"""Python attributes of parameters and buffers as a forward finds them: counters, scales, caches, samples' gradients.

forward    weight.calls is 3 ── call ──▶ 4
replay     an alias of the weight:  3 ── call ──▶ 4     it shares the weight's values, and goes with the replay
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .held import Detached

Attributes = dict[str, Any]


class Tags:
    """The attributes of some tensors when this is made. Tensors with a graph are held without it.

    Args:
        tensors: the tensors.
    """

    __slots__ = ("_found", "_now", "tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # This runs before every call: mostly no tensor has attributes, and then nothing is copied.
        self.tensors = tensors
        self._now = [each.__dict__ for each in tensors]
        self._found = [*map(_taken, self._now)] if any(self._now) else None

    def are_there(self) -> bool:
        """Whether all attributes are still as they were found. Values that cannot be compared count as changed."""
        if self._found is None:
            return not any(self._now)
        try:
            return self._found == self._now
        except (RuntimeError, TypeError, ValueError):
            return False

    def put_found(self) -> None:
        """Give the tensors the attributes that were found."""
        found = self._found or [{} for _ in self._now]
        self.put([{name: _brought(value) for name, value in then.items()} for then in found])

    def with_some(self) -> list[tuple[Tensor, Attributes]]:
        """Return the tensors that have attributes, or had some, each with what was found."""
        if self._found is None and not any(self._now):
            return []
        found = self._found or [{} for _ in self._now]
        return [(tensor, then) for tensor, then, now in zip(self.tensors, found, self._now, strict=True) if then or now]

    def now(self) -> list[Attributes] | None:
        """Return what the tensors have now, for `put`; None if none has any attributes."""
        return [own.copy() for own in self._now] if any(self._now) else None

    def put(self, before: list[Attributes] | None) -> None:
        """Give the tensors the attributes `before`, as `now` returned them."""
        if before is None:
            if any(self._now):
                for own in self._now:
                    own.clear()
            return
        for own, then in zip(self._now, before, strict=True):
            if own.keys() != then.keys() or any(own[name] is not value for name, value in then.items()):
                own.clear()
                own.update(then)


def alias(tensor: Tensor, requires_grad: bool) -> Tensor:
    """Return another tensor object, without attributes, that shares the values of a parameter or buffer."""
    values, kind = tensor.detach(), type(tensor)
    if kind is nn.Parameter:
        return nn.Parameter(values, requires_grad)
    return (values if type(values) is kind else values.as_subclass(kind)).requires_grad_(requires_grad)


def _brought(value: Any) -> Any:
    return value.leaf() if type(value) is Detached else value


def _taken(attributes: Attributes) -> Attributes:
    return {
        name: Detached(value, f"attribute {name!r} of a parameter or buffer")
        if isinstance(value, Tensor) and value.grad_fn is not None
        else value
        for name, value in attributes.items()
    }
