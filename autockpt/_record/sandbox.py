"""Running a user's model without leaving a trace."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence

import numpy
import torch

from .. import _torch_private as private
from .._calls.contents import MOST_ARRAY_BYTES, Contents
from .._calls.values import tensors
from .._device.present import generators

_log = logging.getLogger("autockpt")


class Sandbox:
    """Remembers generators, buffers, flags, attributes and batch of a model.

    A context: everything is put back when it is left, by an exception or not; a warning says what could not be.

    Of parameters, and of large tensors in attributes, it copies those of which `remember` is told that they will be
    changed. Copies wait on the host, where they take nothing of a device's memory.

    Args:
        model: the model that will run.
        inputs: its batch.
        loss: what makes a scalar of its outputs: a function, a method, a module.
        buffers: False where forward cannot reach the buffers themselves (fakes stand in for them).
        parameters: whether to copy all parameters and existing gradients at once. Recording does not: it never calls
            ``.backward()``.

    Attributes:
        contents: what was found in attributes, closures and containers.
        generators: whose states are put back.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        inputs: Sequence[object] = (),
        loss: object = None,
        buffers: bool = True,
        parameters: bool = False,
    ) -> None:
        modules = {name or "the model": module for name, module in model.named_modules()}
        self.contents = Contents({**modules, "loss": loss, "inputs": inputs})
        self._parameters = dict(model.named_parameters())
        values = [tensor for tensor in private.parts(tensors(list(inputs))) if tensor.layout == torch.strided]
        self._gradients = [(t, t.grad) for t in (*model.parameters(), *values) if t.is_leaf] if parameters else []
        values += private.parts(model.buffers()) if buffers else ()
        values += private.parts(model.parameters()) if parameters else ()
        values += [gradient for _, gradient in self._gradients if gradient is not None]
        self._values = [*map(_copied, values)]
        self._late: list[tuple[torch.Tensor, torch.Tensor]] = []  # tensors in attributes: what is there stays meanwhile
        self._data = [(each, each.detach()) for each in model.parameters() if type(each) is torch.nn.Parameter]
        self._uncopied = self._not_copied({id(each) for each in values}) if buffers else {}
        self._copy_small()
        self._random = random.getstate()
        self._numpy = numpy.random.get_state()
        self.generators = list(dict.fromkeys((*generators(), *self.contents.generators)))
        self._states = [generator.get_state() for generator in self.generators]
        self._weights = dict(private.cached_weights())
        private.cached_weights().clear()  # those that are there belong to graphs of the caller's

    def _not_copied(self, copied: set[int]) -> dict[int, list[tuple[str, torch.Tensor, int]]]:
        """Return by storage, which several may share, parameters and held tensors but for those that are `copied`."""
        held = [(f"parameter {name}", tensor) for name, tensor in self._parameters.items()]
        every = [(name, part) for name, tensor in (*self.contents.tensors, *held) for part in private.parts([tensor])]
        found: dict[int, list[tuple[str, torch.Tensor, int]]] = {}
        for name, tensor in {id(tensor): (name, tensor) for name, tensor in every}.values():
            if id(tensor) not in copied and tensor.layout == torch.strided and not tensor.is_inference():
                found.setdefault(private.storage_key(tensor), []).append((name, tensor, tensor._version))
        return found

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        notes = self.notes()
        self.restore()
        for note in notes:
            _log.warning("%s; training goes on with what it is now", note)

    def notes(self) -> list[str]:
        """Name what forward has changed so far and what cannot be put back."""
        changed = self.contents.lost()
        for uncopied in self._uncopied.values():
            changed += [name for name, tensor, version in uncopied if tensor._version != version]
        return [f"forward changed {what}, which could not be put back" for what in changed]

    def remember(self, changing: Iterable[torch.Tensor]) -> None:
        """Copy tensors of the model's, or of attributes, that are about to be changed, or views of them."""
        for tensor in changing:
            for _, own, _ in self._uncopied.pop(private.storage_key(tensor), []):
                (self._values if isinstance(own, torch.nn.Parameter) else self._late).append(_copied(own))

    def _copy_small(self) -> None:
        """Copy small tensors in attributes at once: kernels may change them through pointers, of which nobody tells."""
        sizes = {key: max(own.nbytes for _, own, _ in held) for key, held in self._uncopied.items()}
        total_bytes = 0
        for key in sorted(sizes, key=lambda key: sizes[key]):
            total_bytes += sizes[key]
            if total_bytes > MOST_ARRAY_BYTES:
                return
            if not any(isinstance(own, torch.nn.Parameter) for _, own, _ in self._uncopied[key]):
                self._late += [_copied(own) for _, own, _ in self._uncopied.pop(key)]

    def restore(self) -> None:
        """Put everything back, attributes too."""
        self.contents.restore()
        _put_back(self._late)
        self.rewind()
        private.cached_weights().update(self._weights)

    def rewind(self) -> None:
        """Put values and generators back before the next run, and leave attributes: caches are made only once."""
        private.cached_weights().clear()
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient
        for parameter, data in self._data:
            if parameter.data_ptr() != data.data_ptr():
                parameter.data = data
        _put_back(self._values)
        self.contents.restore(states=True)
        random.setstate(self._random)
        numpy.random.set_state(self._numpy)
        for generator, state in zip(self.generators, self._states, strict=True):
            generator.set_state(state)


def _copied(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor, tensor.detach().to("cpu", copy=True)


def _put_back(values: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, value in values:
            if tensor.layout != torch.strided or not torch.equal(tensor.cpu(), value):
                with private.preserved_version(tensor):  # else a graph of the caller's would take it for changed
                    tensor.copy_(value)


def compile_notes(model: torch.nn.Module) -> list[str]:
    """Say that compiled modules were recorded uncompiled."""
    compiled = [name for name, module in model.named_modules() if private.is_compiled(module)]
    if not compiled:
        return []
    named = ", ".join(name or "the model" for name in compiled[:3]) + (", ..." if len(compiled) > 3 else "")
    return [f"{len(compiled)} modules are compiled ({named}); they were recorded as they run uncompiled"]
