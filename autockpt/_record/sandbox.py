"""Running a user's model without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

from .fingerprint import fingerprint

__all__ = ["Sandbox", "generators_of"]

CONTENT_DEPTH = 2
"""How deep the inside of a list or dictionary is looked at."""

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
        self._contents = {
            (name, key): fingerprint(value, CONTENT_DEPTH)
            for name, attributes in self._attributes.items()
            for key, value in attributes.items()
            if isinstance(value, (list, dict, set)) and key not in _REGISTRIES
        }
        self._versions = {name: parameter._version for name, parameter in model.named_parameters()} if buffers else {}
        self._random = random.getstate()
        self._numpy = numpy.random.get_state()
        self._generators = [(generator, generator.get_state()) for generator in generators_of(model)]

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
        parameters = dict(self._modules[""].named_parameters())
        changed = [
            f"the contents of {name or 'the model'}.{key}"
            for (name, key), contents in self._contents.items()
            if fingerprint(self._modules[name].__dict__.get(key), CONTENT_DEPTH) != contents
        ]
        changed += [
            f"parameter {name}"
            for name, version in self._versions.items()
            if name in parameters and parameters[name]._version != version
        ]
        return [f"forward changed {what}; recording could not put that back" for what in changed]

    def rewind(self) -> None:
        """Put buffers and generators back before the next run; attributes wait until the end."""
        with torch.no_grad():
            for buffer, value in self._buffers:
                if buffer.layout != torch.strided or not torch.equal(buffer, value):
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


def generators_of(model: torch.nn.Module) -> list[torch.Generator]:
    """Return the default generators of every device in use, and those that modules hold themselves."""
    generators = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        generators.extend(torch.cuda.default_generators)
    for module in model.modules():
        generators.extend(value for value in module.__dict__.values() if isinstance(value, torch.Generator))
    return generators
