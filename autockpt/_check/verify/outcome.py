"""Everything that a step makes or changes, which recomputation must leave the same; and its comparison bit for bit."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch

from ..._calls.values import tensors
from ..._record.aside.sandbox import Sandbox
from ..._record.step import TrainingStep
from ..._torch import private
from .report import Difference, Kind


class Observed(NamedTuple):
    """A tensor that a step made or changed; None for a gradient that does not exist."""

    kind: Kind
    name: str
    value: torch.Tensor | None

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name

    def kept(self) -> Observed:
        """Return a copy on the host: later steps do not change it, and it takes no memory of a device."""
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
    for name, buffer in step.model.named_buffers():
        found += _inside("buffer", name, buffer)
    for name, parameter in step.model.named_parameters():
        found += _inside("parameter", name, parameter)
    return [*found, *_generators(sandbox)]


def _inside(kind: Kind, name: str, tensor: torch.Tensor) -> list[Observed]:
    """Return what a parameter or a buffer holds: what it wraps, if it is a wrapper."""
    parts = private.parts([tensor])
    return [Observed(kind, f"{name}[{i}]" if len(parts) > 1 else name, part) for i, part in enumerate(parts)]


@contextmanager
def _readiness(leaves: tuple[torch.Tensor, ...]) -> Iterator[dict[int, int]]:
    """Number the leaves in the order in which backward finishes their gradients."""
    ready: dict[int, int] = {}

    def note(index: int, _: torch.Tensor) -> None:
        ready.setdefault(index, len(ready))

    handles = [leaf.register_hook(partial(note, index)) for index, leaf in enumerate(leaves)]
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


def compare(step: int, expected: Sequence[Observed], found: Sequence[Observed]) -> list[Difference]:
    """Return the differences between two runs of a step, in the order of `expected`."""
    values = {one.key: one.value for one in found}
    known = {one.key for one in expected}
    differences: list[Difference] = []
    for one in expected:
        if one.key in values:
            differences += _difference(step, one, values[one.key])
        else:
            differences.append(Difference(kind=one.kind, name=one.name, step=step, what="missing"))
    new = (Difference(kind=one.kind, name=one.name, step=step, what="new") for one in found if one.key not in known)
    return [*differences, *new]


def _difference(step: int, expected: Observed, found: torch.Tensor | None) -> Iterator[Difference]:
    """Yield the difference, if type, shape or bits differ. NaN equals NaN of the same bits."""
    kind, name, value = expected
    different = partial(Difference, kind=kind, name=name, step=step)
    if value is None or found is None or _type(value) != _type(found):
        if value is not found:
            yield different(what=f"{_describe(found)} instead of {_describe(value)}")
        return
    one, other = _dense(value), _dense(found)
    if torch.equal(_bits(one), _bits(other)):
        return
    differs = (_bits(one) != _bits(other)).view(one.numel(), -1).any(1)
    largest = relative = None
    if kind != "generator":
        largest, relative = _distance(one.reshape(-1)[differs], other.reshape(-1)[differs], one)
    yield different(
        elements=one.numel(),
        different_elements=int(differs.sum()),
        largest_difference=largest,
        relative_difference=relative,
    )


def _distance(one: torch.Tensor, other: torch.Tensor, whole: torch.Tensor) -> tuple[float | None, float | None]:
    """Return the largest absolute difference, and the same over the largest absolute value in `whole`."""
    wide = torch.complex128 if one.is_complex() else torch.float64
    largest = float((one.to(wide) - other.to(wide)).abs().max())
    if not math.isfinite(largest):
        return None, None
    scale = float(whole.to(wide).abs().nan_to_num(0, posinf=0).max())
    return largest, largest / scale if scale else None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of `tensor`, flat."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return all that `tensor` holds as one dense tensor on the host."""
    tensor = tensor.detach().cpu()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def _type(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.layout, tensor.shape


def _describe(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" + (
        "" if tensor.layout == torch.strided else f" ({str(tensor.layout).removeprefix('torch.')})"
    )
