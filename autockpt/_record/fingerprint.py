"""What would differ if forward changed attributes of a module, as it does where it sets itself up."""

from __future__ import annotations

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.Size, type)
"""Types whose values cannot change."""


def fingerprint(value: object, depth: int = 4) -> object:
    """Return something that compares equal as long as nobody changed `value`.

    Args:
        value: any object.
        depth: how many levels of containers and objects are looked into; below that, identity counts.

    Returns:
        Tensors by identity and version, containers by their contents, objects by their attributes.
    """
    if isinstance(value, torch.Tensor):
        return id(value), -1 if value.is_inference() else value._version
    if isinstance(value, PLAIN):
        return value
    if depth == 0 or isinstance(value, (torch.nn.Module, torch.Generator)) or callable(value):
        return id(value)
    if isinstance(value, dict):
        return tuple((str(key), fingerprint(item, depth - 1)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(fingerprint(item, depth - 1) for item in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(id(item) for item in value)
    return tuple((key, fingerprint(item, depth - 1)) for key, item in sorted(getattr(value, "__dict__", {}).items()))


def attributes_of(module: torch.nn.Module) -> object:
    """What would differ if forward bound or changed an attribute of a module, those of its children left out."""
    return [(key, fingerprint(value, 2)) for key, value in module.__dict__.items() if key not in _NOT_STATE]


_NOT_STATE = frozenset({"_parameters", "_buffers", "_modules", "forward"})
"""What is compared by other means, and what the recorder itself binds."""
