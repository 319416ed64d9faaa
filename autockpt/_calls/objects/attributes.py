"""Tensors at plain attributes of modules, as a call finds them: recorder and frames must take the same for them.

`self.last = tanh(x)` leaves one for a log or a later loss, and `self.outputs = [...]` several.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator

from torch import Tensor, nn

from ..values import tensors

_OWN = frozenset(nn.Module().__dict__)
_CONTAINERS = frozenset({list, tuple, dict, OrderedDict})


def may_hold_tensors(value: object) -> bool:
    """Whether an attribute is a tensor, or a container that may have some."""
    kind = type(value)
    return (
        kind is Tensor or kind in _CONTAINERS or (dataclasses.is_dataclass(kind) and not isinstance(value, nn.Module))
    )


def tensors_at_attributes(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors at attributes of a module and of those inside it, each with the attribute's qualified name."""
    for path, inner in module.named_modules(prefix=prefix):
        for name, value in vars(inner).items():
            if name not in _OWN and may_hold_tensors(value):
                qualified = f"{path}.{name}" if path else name
                yield from ((qualified, each) for each in tensors(value))
