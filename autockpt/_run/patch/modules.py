"""What a module is to a plan: whether it is called, what it calls, and which of its buffers change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ..._calls.found.spared import Inside
from ..._torch import private


def buffers_inside(module: nn.Module, changed: set[int]) -> Inside:
    """Return the buffers inside a module whose ids are among some."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if id(buffer) in changed:
            *path, last = name.split(".")
            found.setdefault(tuple(path), []).append(last)
    return tuple((path, tuple(names)) for path, names in found.items())


def nearest(name: str, module: nn.Module) -> Iterator[str]:
    """Names of the modules inside that the module's own code can call.

    `ModuleList` and `ModuleDict` stand for their members; a `Sequential` may be called or gone through.
    """
    for child, inner in module.named_children():
        path = f"{name}.{child}" if name else child
        if not has_forward(inner):
            yield from nearest(path, inner)
            continue
        yield path
        if isinstance(inner, nn.Sequential):
            yield from (f"{path}.{each}" for each, _ in inner.named_children())


def is_pythons(module: nn.Module) -> bool:
    """Whether it has a forward that Python runs: one that is neither scripted nor compiled."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return not scripted and not private.is_compiled(module) and has_forward(module)


def has_forward(module: nn.Module) -> bool:
    """Whether it can be called."""
    return "forward" in module.__dict__ or type(module).forward is not nn.Module.forward


def attributes_inside(module: str, names: Iterable[str]) -> Inside:
    """Return the attributes inside a module among some names: the path to each module, and its own names."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        if name.startswith(f"{module}."):
            *path, last = name[len(module) + 1 :].split(".")
            found.setdefault(tuple(path), []).append(last)
    return tuple((path, tuple(last)) for path, last in found.items())
