"""Everything that a step makes or changes and that recomputation must not: what is compared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch

from ... import _torch_private as private
from ..._calls.values import tensors
from ..._record.sandbox import Sandbox
from ..._record.step import TrainingStep
from .report import Kind


class Observed(NamedTuple):
    """A tensor that a step made or changed; None for a gradient that there is not."""

    kind: Kind
    name: str
    value: torch.Tensor | None

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name

    def kept(self) -> Observed:
        """Return a copy that later steps do not change, on the host, where it takes nothing of a device's memory."""
        value = None if self.value is None else self.value.detach().to("cpu", copy=True)
        return self._replace(value=value)


def observe(step: TrainingStep, sandbox: Sandbox) -> list[Observed]:
    """Run one forward and backward; return what came of it in the order of the step.

    Gradients come in the order in which backward finished them; those that it never reached come last.
    """
    with _readiness(step.leaves) as ready:
        outputs, loss = step.forward()
        gradients = step.gradients(loss)
    found = [Observed("output", name, tensor) for name, tensor in _named(outputs) if tensor is not loss]
    found.append(Observed("loss", "", loss))
    parameters = {id(parameter): name for name, parameter in step.model.named_parameters()}
    batch = {id(tensor): name for name, tensor in _named(step.args or step.kwargs)}
    for index in sorted(range(len(step.leaves)), key=lambda index: ready.get(index, len(ready))):
        leaf = id(step.leaves[index])
        name = parameters.get(leaf)
        kind: Kind = "input gradient" if name is None else "gradient"
        found.append(Observed(kind, batch.get(leaf, "") if name is None else name, gradients[index]))
    found += [Observed("buffer", name, buffer) for name, buffer in step.model.named_buffers()]
    found += [Observed("parameter", name, parameter) for name, parameter in step.model.named_parameters()]
    return [*found, *_generators(sandbox)]


@contextmanager
def _readiness(leaves: tuple[torch.Tensor, ...]) -> Iterator[dict[int, int]]:
    """Number the leaves in the order in which backward finishes their gradients."""
    ready: dict[int, int] = {}

    def note(index: int) -> None:
        ready.setdefault(index, len(ready))

    def hook(index: int) -> Any:
        return lambda gradient: note(index)

    handles = [leaf.register_hook(hook(index)) for index, leaf in enumerate(leaves)]
    try:
        yield ready
    finally:
        for leaf, handle in zip(leaves, handles, strict=True):
            handle.remove()
            private.forget_empty_hooks(leaf)


def _named(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors in `value`, named by key, field or position at the top level."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = list(zip(value._fields, value, strict=True))
    elif isinstance(value, (tuple, list)):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        items = [("", value)]
    found = []
    for name, item in items:
        inside = tensors([item])
        found += [(f"{name}[{i}]" if len(inside) > 1 else name, tensor) for i, tensor in enumerate(inside)]
    return found


def _generators(sandbox: Sandbox) -> list[Observed]:
    """Return the states of all generators: those of the devices, then those that modules or the batch hold."""
    found, seen = [], Counter[str]()
    for generator in sandbox.generators:
        device = str(generator.device)
        found.append(
            Observed("generator", f"{device} #{seen[device]}" if seen[device] else device, generator.get_state())
        )
        seen[device] += 1
    algorithm, keys, *rest = numpy.random.get_state(legacy=True)
    states = {"python": repr(random.getstate()), "numpy": repr((algorithm, list(keys), *rest))}
    for name, state in states.items():
        found.append(Observed("generator", name, torch.frombuffer(bytearray(state.encode()), dtype=torch.uint8)))
    return found
