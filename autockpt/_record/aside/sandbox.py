"""Runs a user's model without leaving a trace: what it changes is put back."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence

import numpy
import torch

from ..._calls.found.around import set_states, states_of
from ..._calls.objects.contents import MOST_ARRAY_BYTES, Contents
from ..._calls.values import tensors
from ..._torch import private
from ..._torch.devices.present import generators

_log = logging.getLogger("autockpt")


class Sandbox:
    """Remembers a model's random generators, buffers, flags, attributes and batch, and puts them back.

    A context manager: on exit, with an exception or without, everything is put back. A warning names what could not be.

    Parameters, and large tensors in attributes, are copied only when `remember` is told that they will be changed.
    Copies wait on the host, so they take no device memory.

    Args:
        model: the model that will run.
        inputs: its batch.
        loss: what makes a scalar of its outputs: a function, a method, a module.
        buffers: False if forward cannot reach the buffers themselves, because fake tensors replace them.
        parameters: whether to copy all parameters and existing gradients at once. Recording does not need that: it
            never calls ``.backward()``.

    Attributes:
        contents: what was found in attributes, closures and containers.
        generators: the random generators whose states are put back.
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
        self._late: list[tuple[torch.Tensor, torch.Tensor]] = []  # tensors in attributes: put back at the end only
        self._data = [(each, each.detach()) for each in model.parameters() if type(each) is torch.nn.Parameter]
        self._uncopied = self._not_copied({id(each) for each in values}) if buffers else {}
        self._copy_small()
        self._random = random.getstate()
        self._numpy = numpy.random.get_state()
        self.generators = list(dict.fromkeys((*generators(), *self.contents.generators)))
        self._states = states_of(self.generators)
        self._weights = dict(private.cached_weights())
        private.cached_weights().clear()  # the caller's: they belong to graphs of the caller

    def _not_copied(self, copied: set[int]) -> dict[int, list[tuple[str, torch.Tensor, int]]]:
        """Return parameters and held tensors that are not `copied`, by storage; several may share one."""
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
        """Name what forward has changed so far and cannot be put back."""
        changed = self.contents.lost()
        for uncopied in self._uncopied.values():
            changed += [name for name, tensor, version in uncopied if tensor._version != version]
        return [f"forward changed {what}, which could not be put back" for what in changed]

    def remember(self, changing: Iterable[torch.Tensor]) -> None:
        """Copy the model's own and attributes' tensors with these storages: they are about to be changed."""
        for tensor in changing:
            for _, own, _ in self._uncopied.pop(private.storage_key(tensor), []):
                (self._values if isinstance(own, torch.nn.Parameter) else self._late).append(_copied(own))

    def _copy_small(self) -> None:
        """Copy small tensors in attributes at once: a kernel may change them through pointers, and nobody sees that."""
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
        """Put values and generators back before the next run, but not attributes: a cache there is filled only once."""
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
        set_states(self._states)


def _copied(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor, tensor.detach().to("cpu", copy=True)


def _put_back(values: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, value in values:
            if tensor.layout != torch.strided or not torch.equal(tensor.cpu(), value):
                with private.preserved_version(tensor):  # else a backward of the caller's would raise: it was changed
                    tensor.copy_(value)


def compile_notes(model: torch.nn.Module) -> list[str]:
    """Say which modules are compiled: they were recorded as they run uncompiled."""
    compiled = [name for name, module in model.named_modules() if private.is_compiled(module)]
    if not compiled:
        return []
    named = ", ".join(name or "the model" for name in compiled[:3]) + (", ..." if len(compiled) > 3 else "")
    return [f"{len(compiled)} modules are compiled ({named}); they were recorded as they run uncompiled"]
