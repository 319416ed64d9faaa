"""Running a user's model without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

__all__ = ["Sandbox"]

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class Sandbox:
    """Remembers generators, buffers, flags and attributes of a model, and puts them back.

    Gradients need no care: recording never calls ``.backward()``. What cannot be put back (the inside of a
    list or a dictionary that forward changes) is named by `notes`.

    Args:
        model: the model that will run.
        buffers: False where forward cannot reach the buffers themselves (fakes stand in for them).
    """

    def __init__(self, model: torch.nn.Module, *, buffers: bool = True) -> None:
        self._modules = dict(model.named_modules())
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()] if buffers else []
        self._attributes = {name: dict(module.__dict__) for name, module in self._modules.items()}
        self._registries = {
            (name, registry): dict(module.__dict__[registry])
            for name, module in self._modules.items()
            for registry in _REGISTRIES
        }
        self._sizes = {
            (name, key): len(value)
            for name, attributes in self._attributes.items()
            for key, value in attributes.items()
            if isinstance(value, (list, dict, set)) and key not in _REGISTRIES
        }
        self._random = random.getstate()
        self._numpy = numpy.random.get_state()
        self._generators = [(generator, generator.get_state()) for generator in _generators(self._attributes)]

    @classmethod
    @contextmanager
    def around(cls, model: torch.nn.Module, *, buffers: bool = True) -> Iterator[Sandbox]:
        """Put everything back when the context is left, by an exception or not."""
        sandbox = cls(model, buffers=buffers)
        try:
            yield sandbox
        finally:
            sandbox._restore_attributes()
            sandbox.rewind()

    def notes(self) -> list[str]:
        """Name what forward has changed so far and what cannot be put back."""
        return [
            f"forward changed the contents of {name or 'the model'}.{key}; recording could not put that back"
            for (name, key), size in self._sizes.items()
            if len(self._modules[name].__dict__.get(key, ())) != size
        ]

    def rewind(self) -> None:
        """Put buffers and generators back, so that the next run repeats the last one."""
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
        random.setstate(self._random)
        numpy.random.set_state(self._numpy)
        for generator, state in self._generators:
            generator.set_state(state)

    def _restore_attributes(self) -> None:
        for name, module in self._modules.items():
            before = self._attributes[name]
            for key in module.__dict__.keys() - before.keys():
                del module.__dict__[key]
            module.__dict__.update(before)
        for (name, registry), entries in self._registries.items():
            current = self._modules[name].__dict__[registry]
            if [(key, id(value)) for key, value in current.items()] != [(k, id(v)) for k, v in entries.items()]:
                current.clear()
                current.update(entries)


def _generators(attributes: dict[str, dict[str, Any]]) -> list[torch.Generator]:
    """Default generators of every device in use, and those that modules hold themselves."""
    generators = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        generators.extend(torch.cuda.default_generators)
    for values in attributes.values():
        generators.extend(value for value in values.values() if isinstance(value, torch.Generator))
    return generators
