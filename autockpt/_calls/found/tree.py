"""The modules of a member as its forward finds them: their attributes, parameters, buffers, children and hooks.

This runs before every call of a member, and twice around its replay, when the CPU's caches are cold. So it reads as
little as it can, and all comparisons are a few of whole lists.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import chain, filterfalse
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

Contents: TypeAlias = dict[str, Any]

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""The hooks around a module's forward. Where the first two are empty, so are the others."""

HELD = ("_parameters", "_buffers", "_modules")

NOTHING: dict[Any, Any] = {}

_PARTS = operator.itemgetter(*HELD, *HOOKS[:2])
_OTHER_HOOKS = operator.itemgetter(*HOOKS[2:])
_copy, _values = operator.methodcaller("copy"), operator.methodcaller("values")
_TENSOR = frozenset({Tensor})


class FoundModule(NamedTuple):
    """A module, and what forward found of it: attributes, parameters, buffers, children, and hooks by kind."""

    module: nn.Module
    contents: Contents
    parameters: Contents
    buffers: Contents
    children: Contents
    hooks: dict[str, dict[int, Any]]


class Tree:
    """Modules, each once, and copies of what their dictionaries have.

    Args:
        members: the modules; those inside them follow.

    Attributes:
        modules: the modules.
        contents: the attributes of each.
        parameters, buffers: those of all; one that two modules share is there twice.
        norms: the buffers of each normalisation layer in training mode.
    """

    __slots__ = ("_copies", "_empty", "_filled", "buffers", "contents", "modules", "norms", "parameters")

    def __init__(self, members: Iterable[nn.Module] = ()) -> None:
        self.modules = modules = [*members]
        self.norms: list[dict[str, Tensor | None]] = []
        parts: list[Contents] = []
        of_parameters: list[Tensor | None] = []
        of_buffers: list[Tensor | None] = []
        seen = {None, *modules}
        for module in modules:
            now = module.__dict__
            parameters, buffers, children, hooks, pre_hooks = own = _PARTS(now)
            parts += own
            if hooks or pre_hooks:
                parts += _OTHER_HOOKS(now)
            if parameters:
                of_parameters += parameters.values()
            if buffers:
                of_buffers += buffers.values()
                if "num_batches_tracked" in buffers and now["training"]:
                    self.norms.append(buffers)
            if children:
                for child in children.values():
                    if child not in seen:
                        seen.add(child)
                        modules.append(child)
        self.parameters = [tensor for tensor in of_parameters if tensor is not None]
        self.buffers = [tensor for tensor in of_buffers if tensor is not None] if of_buffers else []
        self.contents: list[Contents] = [*map(_copy, map(vars, modules))]
        self._filled = [*filter(None, parts)]
        self._copies: list[Contents] = [*map(_copy, self._filled)]
        self._empty = [*filterfalse(None, parts)]

    def has_tensors(self) -> bool:
        """Whether a tensor is an attribute of one of them, beside parameters and buffers."""
        return not _TENSOR.isdisjoint(map(type, chain.from_iterable(map(_values, self.contents))))

    def is_there(self) -> bool:
        """Whether the modules are still as they were found.

        An attribute with an equal value counts as unchanged. If values cannot be compared, such as two tensors, only
        the same object does.
        """
        try:
            # The dictionaries inside are those that were found, if the attributes are, or equal to these.
            same = self.contents == [*map(vars, self.modules)] and self._copies == self._filled
        except (RuntimeError, TypeError, ValueError):
            return False
        return same and not any(self._empty)

    def copies(self) -> dict[int, Contents]:
        """Return copies of the dictionaries of parameters, hooks and so on, by the id of each; not of empty ones."""
        return dict(zip(map(id, self._filled), self._copies, strict=True))

    def every(self) -> list[FoundModule]:
        """Return how each module was found."""
        copies, found = self.copies(), []
        for module, contents in zip(self.modules, self.contents, strict=True):
            # `contents` is a shallow copy: under each name it has the module's own dictionary, by whose id the copy is.
            parameters, buffers, children, *hooks = (copies.get(id(contents[name]), NOTHING) for name in HELD + HOOKS)
            found.append(
                FoundModule(module, contents, parameters, buffers, children, dict(zip(HOOKS, hooks, strict=True)))
            )
        return found
