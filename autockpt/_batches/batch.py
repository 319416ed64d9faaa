"""What a batch looks like, and how the model stands: all that the memory of a step depends on, but the values."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn

from .._calls.roots import WHOLE, roots
from .._calls.values import encode, kept_whole
from .._device.present import kinds
from .._ranks.buckets import data_parallel
from .._ranks.units import gathered_now, parameters_at_rest, switches, waiting_gradients
from .._torch_private import is_distributed, parts, process_group

SWITCHES = (bool, str, torch.dtype, enum.Enum)
"""Arguments that make a model do something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The shapes of a batch, and what must be equal for two batches to be alike.

    Attributes:
        kind: name of the one of several models that is called; names of arguments, switches among them (booleans,
            strings, dtypes, enumerations, None), and ranks, dtypes, devices and gradient flags of the tensors and
            arrays; modules, flags and dtypes of the model, and autocast.
        numbers: whole numbers among the arguments: some say how deep a model is to go, some only count steps.
        shapes: of the tensors and arrays, in order.
        backwards: how many of its step's had begun before it: while a graph of the step waits, others have theirs.
    """

    kind: tuple[object, ...]
    numbers: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    backwards: int = 0

    def covers(self, other: Batch, *, sizes: bool = True) -> bool:
        """Whether `other` is alike, and no larger in any dimension where `sizes` count."""
        alike = (self.kind, self.numbers, self.backwards) == (other.kind, other.numbers, other.backwards)
        return alike and all(
            mine >= theirs or not sizes
            for own, shape in zip(self.shapes, other.shapes, strict=True)
            for mine, theirs in zip(own, shape, strict=True)
        )

    def describe(self) -> str:
        """The shapes, for a sentence."""
        return ", ".join("x".join(map(str, shape)) or "a number" for shape in self.shapes) or "no tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of step.

    Attributes:
        batches: of its forwards, in order.
        gradient_bytes: of the gradients with which it begins.
    """

    batches: tuple[Batch, ...]
    gradient_bytes: int

    def without_numbers(self) -> Kind:
        """Return the kind with no numbers among the arguments."""
        return replace(self, batches=tuple(replace(batch, numbers=()) for batch in self.batches))

    def describe(self) -> str:
        """The shapes, for a sentence."""
        return "; ".join(batch.describe() for batch in self.batches)

    def covers(self, batches: Sequence[Batch], gradient_bytes: int, *, sizes: bool = True) -> bool:
        """Whether a step that has made these forwards so far needs no more memory; one with more gradients does.

        Or else, whether it only makes the same forwards, whatever their `sizes`.
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
        own: the forward of the one that is called, whatever was put over it.
        arguments: by position and by keyword.
        name: of the one that is called.
    """

    model: nn.Module
    own: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    name: str = WHOLE

    @property
    def root(self) -> nn.Module:
        """The one that is called; a copy of one of several is all that there is of them."""
        return roots(self.model).get(self.name, self.model)

    @property
    def evaluates(self) -> bool:
        """Whether it may be one of an evaluation in which gradients were left on."""
        return not self.root.training and any(each.requires_grad for each in self.root.parameters())

    @property
    def device(self) -> torch.device:
        """Where the model trains, or lies, where all of it is frozen and gradients pass through it."""
        trained = (parameter.device for parameter in self.model.parameters() if parameter.requires_grad)
        return next(trained, None) or next(self.model.parameters()).device

    def run(self) -> Any:
        """Run the model's own forward."""
        args, kwargs = self.arguments
        return self.own(*args, **kwargs)

    def batch(self, *, numbers: bool = True) -> Batch:
        """Describe the batch in the arguments, with whole numbers among them or without."""
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
    """Describe the batch in the arguments of a model's own forward, by position or by keyword; its numbers or not."""
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
    """Return a shape in numbers: that of all values together where each row has a length of its own."""
    return tuple(tensor.values().shape if getattr(tensor, "is_nested", False) else tensor.shape)


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the parameters to whose gradients a step that begins now adds its own."""
    # What stands for a parameter for a while (torch.func.functional_call) is no leaf, and has none.
    own: Iterable[nn.Parameter] = parameters_at_rest(model) if process_group() else _parameters(_modules(model))
    held = {id(each): each for each in own if each.is_leaf and each.grad is not None}
    trained: list[torch.Tensor] = [each for each in held.values() if each.requires_grad]
    if process_group():
        trained = [*parts(trained), *waiting_gradients(model)]
    return sum(each.nbytes for each in trained)


def gathered_bytes(model: nn.Module) -> int:
    """Bytes of parameters that FSDP2 has gathered as a step begins, and lets go of within it."""
    return sum(each.untyped_storage().nbytes() for each in gathered_now(model)) if process_group() else 0


def _state_of(model: nn.Module) -> tuple[object, ...]:
    """What of a model and its surroundings decides how much it saves, beside its batch."""
    modules = _modules(model)
    parameters = tuple([(parameter.requires_grad, parameter.dtype) for parameter in _parameters(modules)])
    autocast = tuple(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds())
    trains = tuple([(id(module), module.training) for module in modules])
    if not process_group():
        return parameters, trains, autocast
    several = any(map(is_distributed, _parameters(modules)))
    return parameters, trains, autocast, switches(model), data_parallel(model) is not None, several


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return a model and all modules inside, each once; every step asks, and by torch it takes ten times as long."""
    found, seen = [model], {model}
    for module in found:
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def _parameters(modules: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    """Yield the parameters of modules: one that two of them share twice."""
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None:
                yield parameter


def by_name(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments by the names that forward has for them; by position where it does not say."""
    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # forward will say itself what is wrong
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
