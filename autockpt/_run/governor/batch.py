"""What a batch looks like, and how the model stands: all that the memory of a step depends on, but the values."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from ..._calls.values import encode, kept_whole
from ...solvers.errors import BudgetError

Shape = tuple[int, ...]
Places = frozenset[tuple[int, int]]

SWITCHES = (bool, str, torch.dtype, enum.Enum)
"""Arguments that make a model do something else."""


class Varying(NamedTuple):
    """The one size in which two batches differ.

    Attributes:
        places: the dimensions that have it, as number of the tensor and of the dimension.
        mine: the size in the one batch.
        theirs: the size in the other.
    """

    places: Places
    mine: int
    theirs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The shapes of a batch, and what must be equal for two batches to be alike.

    Attributes:
        kind: names of arguments, switches among them (booleans, strings, dtypes, enumerations, None), and ranks,
            dtypes, devices and gradient flags of the tensors; flags and dtypes of the model, and autocast. Numbers are
            left out: a step counter changes nothing.
        shapes: of the tensors, in order.
    """

    kind: tuple[object, ...]
    shapes: tuple[Shape, ...]

    def covers(self, other: Batch) -> bool:
        """Whether `other` is of the same kind and no larger in any dimension."""
        return self.kind == other.kind and all(
            mine >= theirs
            for own, shape in zip(self.shapes, other.shapes, strict=True)
            for mine, theirs in zip(own, shape, strict=True)
        )

    def varying(self, other: Batch) -> Varying | None:
        """Return the one size in which this batch and `other` differ.

        None if they are of different kinds, equal, or differ in more than one size: several dimensions may differ, but
        all from the same number to the same number, as the lengths of tokens, labels and mask do.
        """
        if self.kind != other.kind:
            return None
        differing = {
            (tensor, dimension): (mine, theirs)
            for tensor, (own, shape) in enumerate(zip(self.shapes, other.shapes, strict=True))
            for dimension, (mine, theirs) in enumerate(zip(own, shape, strict=True))
            if mine != theirs
        }
        sizes = set(differing.values())
        return Varying(frozenset(differing), *sizes.pop()) if len(sizes) == 1 else None

    def growth_from(self, other: Batch) -> float:
        """Return by how much more numbers the tensor that grew most has than in `other`, of the same kind; at least 1.

        One that other has none of counts as growing without limit.
        """
        sizes = [(math.prod(own), math.prod(shape)) for own, shape in zip(self.shapes, other.shapes, strict=True)]
        return max((mine / theirs if theirs else math.inf for mine, theirs in sizes if mine > theirs), default=1.0)

    def ratio_to(self, other: Batch) -> float:
        """Return the largest ratio of a dimension's size here and in `other`, of the same kind, either way round."""
        pairs = (
            pair for own, shape in zip(self.shapes, other.shapes, strict=True) for pair in zip(own, shape, strict=True)
        )
        return max(
            (max(pair) / min(pair) if min(pair) else math.inf for pair in pairs if pair[0] != pair[1]), default=1.0
        )

    def resized(self, places: Places, size: int) -> Batch:
        """Return a batch that has `size` in the dimensions `places`."""
        shapes = tuple(
            tuple(size if (tensor, dimension) in places else old for dimension, old in enumerate(shape))
            for tensor, shape in enumerate(self.shapes)
        )
        return replace(self, shapes=shapes)

    def describe(self) -> str:
        """The shapes, for a sentence."""
        return ", ".join("x".join(map(str, shape)) or "a number" for shape in self.shapes) or "no tensors"


def batch_of(model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Batch:
    """Describe the batch in the arguments of a model's own forward, by position or by keyword."""
    arguments = _by_name(forward, args, kwargs)
    tensors: list[torch.Tensor] = []
    templates = encode(arguments.values(), tensors)
    switches = tuple(each for each in kept_whole(templates) if each is None or isinstance(each, SWITCHES))
    traits = tuple((each.dim(), each.dtype, each.device, each.requires_grad) for each in tensors)
    return Batch(
        kind=(tuple(arguments), switches, traits, _state_of(model)),
        shapes=tuple(tuple(each.shape) for each in tensors),
    )


def enlarged(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with tensors repeated until they are as large as was asked for.

    Args:
        forward: the model's own.
        args: by position.
        kwargs: by keyword.
        shapes: by name of the argument.

    Returns:
        Arguments by position and by keyword.

    Raises:
        BudgetError: there is no such tensor, or it has another number of dimensions.
    """
    places = _by_name(forward, tuple(range(len(args))), {name: name for name in kwargs})
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    for name, shape in shapes.items():
        tensor = given[places[name]] if name in places else None
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != len(shape):
            found = f"a tensor of shape {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else repr(tensor)
            raise BudgetError(
                f"plan_for asks for {name!r} in shape {shape}, and the batch has {found} there; it has the arguments "
                f"{', '.join(places)}"
            )
        given[places[name]] = _repeated(tensor, tuple(map(max, shape, tensor.shape)))
    return tuple(given[position] for position in range(len(args))), {name: given[name] for name in kwargs}


def _state_of(model: nn.Module) -> tuple[object, ...]:
    """What of a model and its surroundings decides how much it saves, beside its batch."""
    parameters = tuple((parameter.requires_grad, parameter.dtype) for parameter in model.parameters())
    autocast = tuple(
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cpu", "cuda")
    )
    return parameters, tuple(module.training for module in model.modules()), autocast


def _repeated(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Repeat a tensor's values, so that they stay such as the model is used to (indices of a vocabulary)."""
    for dimension, size in enumerate(shape):
        index = torch.arange(size, device=tensor.device) % tensor.shape[dimension]
        tensor = tensor.detach().index_select(dimension, index).requires_grad_(tensor.requires_grad)
    return tensor


def _by_name(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments by the names that forward has for them; by position where it does not say."""
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
