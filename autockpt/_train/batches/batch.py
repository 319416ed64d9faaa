"""Describes a batch and the state of the model: all that the memory of a step depends on, except values."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn

from ..._calls.roots import WHOLE, roots
from ..._calls.values import encode, kept_whole
from ..._ranks.buckets import data_parallel
from ..._ranks.fsdp import gathered_now, parameters_at_rest, switches, waiting_gradients
from ..._torch.devices.present import kinds
from ..._torch.private import is_distributed, parts, process_group

SWITCHES = (bool, str, torch.dtype, enum.Enum)
"""Types of arguments that switch what a model does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The shapes of a batch, and what must be equal for two batches to be alike.

    Attributes:
        kind: what must be equal. Of the arguments: their names, the switches among them (booleans, strings, dtypes,
            enumerations, None), and the number of dimensions, dtype, device and ``requires_grad`` of tensors and
            arrays. Of the model: its name among several, its modules, flags and dtypes; and autocast.
        numbers: whole numbers among the arguments: some say how deep a model runs, some only count steps.
        shapes: shapes of the tensors and arrays, in order.
        backwards: how many backwards of its step had begun before this forward; more than 0 if a graph still waited.
    """

    kind: tuple[object, ...]
    numbers: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    backwards: int = 0

    def covers(self, other: Batch, *, sizes: bool = True) -> bool:
        """Whether `other` is alike and, if `sizes` count, no larger in any dimension."""
        alike = (self.kind, self.numbers, self.backwards) == (other.kind, other.numbers, other.backwards)
        return alike and all(
            mine >= theirs or not sizes
            for own, shape in zip(self.shapes, other.shapes, strict=True)
            for mine, theirs in zip(own, shape, strict=True)
        )

    def describe(self) -> str:
        """The shapes, as part of a sentence."""
        return ", ".join("x".join(map(str, shape)) or "a number" for shape in self.shapes) or "no tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of step.

    Attributes:
        batches: the batches of its forwards, in order.
        gradient_bytes: bytes of the gradients that exist as it begins.
    """

    batches: tuple[Batch, ...]
    gradient_bytes: int

    def without_numbers(self) -> Kind:
        """Return the kind without the whole numbers among the arguments."""
        return replace(self, batches=tuple(replace(batch, numbers=()) for batch in self.batches))

    def describe(self) -> str:
        """The shapes, as part of a sentence."""
        return "; ".join(batch.describe() for batch in self.batches)

    def covers(self, batches: Sequence[Batch], gradient_bytes: int, *, sizes: bool = True) -> bool:
        """Whether a step with these forwards so far, begun with so many bytes of gradients, needs no more memory.

        If `sizes` do not count, the forwards only have to be alike.
        """
        return (
            self.gradient_bytes >= gradient_bytes
            and len(self.batches) >= len(batches)
            and all(own.covers(other, sizes=sizes) for own, other in zip(self.batches, batches, strict=False))
        )


class Forward(NamedTuple):
    """A forward that begins.

    Attributes:
        model: the model, or several that are planned together.
        own: the original forward of the model that is called, not one that was patched over it.
        arguments: its arguments, by position and by keyword.
        name: the name of the model that is called, among several.
    """

    model: nn.Module
    own: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    name: str = WHOLE

    @property
    def root(self) -> nn.Module:
        """The model that is called. A copy of one of several models has no others: then it is `model` itself."""
        return roots(self.model).get(self.name, self.model)

    @property
    def evaluates(self) -> bool:
        """Whether it may belong to an evaluation with gradients left on."""
        return not self.root.training and any(each.requires_grad for each in self.root.parameters())

    @property
    def device(self) -> torch.device:
        """The device of the model's trainable parameters; of any parameter if all are frozen."""
        trained = (parameter.device for parameter in self.model.parameters() if parameter.requires_grad)
        return next(trained, None) or next(self.model.parameters()).device

    def run(self) -> Any:
        """Run the model's own forward."""
        args, kwargs = self.arguments
        return self.own(*args, **kwargs)

    def batch(self, *, numbers: bool = True) -> Batch:
        """Describe the batch in the arguments, with the whole numbers among them or without."""
        batch = batch_of(self.model, self.own, *self.arguments, numbers=numbers)
        return replace(batch, kind=(self.name, *batch.kind)) if self.name else batch


def batch_of(
    model: nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    numbers: bool = True,
) -> Batch:
    """Describe the batch in the arguments of a model's own forward, with the whole numbers among them or without."""
    arguments = by_name(forward, args, kwargs)
    tensors: list[torch.Tensor] = []
    others = kept_whole(encode(arguments.values(), tensors))
    switches = tuple(each for each in others if each is None or isinstance(each, SWITCHES))
    arrays: list[Any] = [each for each in others if isinstance(each, numpy.ndarray)]
    traits = tuple((each.dim(), each.dtype, each.device, each.requires_grad) for each in tensors)
    return Batch(
        kind=(tuple(arguments), switches, traits, tuple((each.ndim, each.dtype) for each in arrays), _state_of(model)),
        numbers=tuple(each for each in others if numbers and type(each) is int),
        shapes=tuple(map(_shape_of, (*tensors, *arrays))),
    )


def _shape_of(tensor: Any) -> tuple[int, ...]:
    """Return a shape; for a nested tensor, that of all its values together, or of a strided one how many there are."""
    if not getattr(tensor, "is_nested", False):
        return tuple(tensor.shape)
    return (tensor.numel(),) if tensor.layout is torch.strided else tuple(tensor.values().shape)


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients that exist as a step begins, to which the step adds its own."""
    # A tensor that replaces a parameter for a while (torch.func.functional_call) is no leaf, and has no gradient.
    own: Iterable[nn.Parameter] = parameters_at_rest(model) if process_group() else _parameters(_modules(model))
    held = {id(each): each for each in own if each.is_leaf and each.grad is not None}
    trained: list[torch.Tensor] = [each for each in held.values() if each.requires_grad]
    if process_group():
        trained = [*parts(trained), *waiting_gradients(model)]
    return sum(each.nbytes for each in trained)


def gathered_bytes(model: nn.Module) -> int:
    """Bytes of parameters that FSDP2 has gathered as a step begins, and frees within it."""
    return sum(each.untyped_storage().nbytes() for each in gathered_now(model)) if process_group() else 0


def _state_of(model: nn.Module) -> tuple[object, ...]:
    """What decides how much a model saves, besides its batch: its parameters, its modules' modes, autocast, ranks."""
    modules = _modules(model)
    parameters = tuple([(parameter.requires_grad, parameter.dtype) for parameter in _parameters(modules)])
    autocast = tuple(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds())
    trains = tuple([(id(module), module.training) for module in modules])
    if not process_group():
        return parameters, trains, autocast
    several = any(map(is_distributed, _parameters(modules)))
    return parameters, trains, autocast, switches(model), data_parallel(model) is not None, several


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return a model and all modules inside it, each once. Every step asks, and torch's own takes ten times as long."""
    found, seen = [model], {model}
    for module in found:
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def _parameters(modules: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    """Yield the parameters of modules. A parameter that two modules share comes twice."""
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None:
                yield parameter


def by_name(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments by the names of forward's parameters, or by position if they do not fit its signature."""
    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # if the arguments are wrong, forward itself will raise
        return {**{str(position): value for position, value in enumerate(args)}, **kwargs}
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({f"{name}[{position}]": each for position, each in enumerate(value)})
        else:
            found[name] = value
    return found
