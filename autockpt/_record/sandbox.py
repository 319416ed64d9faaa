"""Running a user's model without leaving a trace."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy
import torch

from .. import _torch_private as private
from .._calls.values import tensors
from .fingerprint import fingerprint

CONTENT_DEPTH = 2
"""How deep the inside of a list or dictionary is looked at."""

_REGISTRIES = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
)
"""Dictionaries of every module whose entries are put back: forward may register what it finds missing."""


class Sandbox:
    """Remembers generators, buffers, flags, attributes and batch of a model, and puts them back.

    Of parameters, which are large, it copies those of which `remember` is told that they will be changed. What cannot
    be put back (the inside of a list or a dictionary that forward changes) is named by `notes`. Copies wait on the
    host, where they take nothing of a device's memory.

    Args:
        model: the model that will run.
        inputs: its batch: tensors, and generators among the arguments themselves.
        buffers: False where forward cannot reach the buffers themselves (fakes stand in for them).
        parameters: whether to copy all parameters and existing gradients at once. Recording does not: it never calls
            ``.backward()``.

    Attributes:
        generators: whose states are put back.
    """

    def __init__(
        self, model: torch.nn.Module, *, inputs: Sequence[object] = (), buffers: bool = True, parameters: bool = False
    ) -> None:
        self._modules = dict(model.named_modules())
        values = [tensor for tensor in tensors(list(inputs)) if tensor.layout == torch.strided]
        self._gradients = [(t, t.grad) for t in (*model.parameters(), *values) if t.is_leaf] if parameters else []
        values += model.buffers() if buffers else ()
        values += model.parameters() if parameters else ()
        values += [gradient for _, gradient in self._gradients if gradient is not None]
        self._values = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in values]
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
        self._data = [(each, each.detach()) for each in model.parameters() if type(each) is torch.nn.Parameter]
        untouched = buffers and not parameters
        self._versions = {name: parameter._version for name, parameter in model.named_parameters()} if untouched else {}
        self._own: dict[int, list[torch.nn.Parameter]] = {}  # by storage, which several may share
        for parameter, data in self._data if untouched else ():
            self._own.setdefault(private.storage_key(data), []).append(parameter)
        self._random = random.getstate()
        self._numpy = numpy.random.get_state()
        self.generators = [*generators_of(model), *(each for each in inputs if isinstance(each, torch.Generator))]
        self._states = [generator.get_state() for generator in self.generators]

    @classmethod
    @contextmanager
    def around(
        cls, model: torch.nn.Module, *, inputs: Sequence[object] = (), buffers: bool = True, parameters: bool = False
    ) -> Iterator[Sandbox]:
        """Put everything back when the context is left, by an exception or not."""
        sandbox = cls(model, inputs=inputs, buffers=buffers, parameters=parameters)
        try:
            yield sandbox
        finally:
            sandbox.restore()

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
            if name in parameters
            and parameters[name]._version != version
            and not any(parameters[name] is tensor for tensor, _ in self._values)
        ]
        return [f"forward changed {what}, which could not be put back" for what in changed]

    def remember(self, changing: Iterable[torch.Tensor]) -> None:
        """Copy the parameters among tensors that are about to be changed, or views of them, to be put back as well."""
        for tensor in changing:
            own = self._own.pop(private.storage_key(tensor), [])
            self._values += [(parameter, parameter.detach().to("cpu", copy=True)) for parameter in own]

    def restore(self) -> None:
        """Put everything back, attributes too."""
        self._restore_attributes()
        self.rewind()

    def rewind(self) -> None:
        """Put values and generators back before the next run, and leave attributes: caches are made only once."""
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient
        for parameter, data in self._data:
            if parameter.data_ptr() != data.data_ptr():
                parameter.data = data
        with torch.no_grad():
            for tensor, value in self._values:
                if tensor.layout != torch.strided or not torch.equal(tensor.cpu(), value):
                    with private.preserved_version(tensor):  # else a graph of the caller's would take it for changed
                        tensor.copy_(value)
        random.setstate(self._random)
        numpy.random.set_state(self._numpy)
        for generator, state in zip(self.generators, self._states, strict=True):
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


def uncompiled() -> AbstractContextManager[object]:
    """Return a context in which compiled code runs as it was before: the compiler would trace the recorder too."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and loading the compiler takes a second
        return nullcontext()
    context: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return context


def compile_notes(model: torch.nn.Module) -> list[str]:
    """Say that compiled modules were recorded uncompiled."""
    compiled = [name for name, module in model.named_modules() if private.is_compiled(module)]
    if not compiled:
        return []
    named = ", ".join(name or "the model" for name in compiled[:3]) + (", ..." if len(compiled) > 3 else "")
    return [f"{len(compiled)} modules are compiled ({named}); they were recorded as they run uncompiled"]
