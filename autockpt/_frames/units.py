"""Units: what a member runs inside it and its replay does not run again, because they are kept or skipped.

    forward   norm ─▶ [up] ─▶ gelu ─▶ [down] ─▶ +        [up] kept: its result is stashed
    replay    norm    stash ─▶ gelu    hollow             [down] skipped: nothing needed reads its result
               └────────▶ what [up] saved of its argument

What a unit saves stays with autograd, as in a plain step, but for its own arguments: those the replay makes again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import _torch_private
from .._errors import NotApplicable
from .hollow import hollow
from .slots import check_unchanged
from .tree import decode, encode

__all__ = ["Choice", "Inputs", "Kept", "Unit"]

Choice: TypeAlias = dict[str, bool]
"""Functions that a call's own code does not run again in a replay, as ``name#occurrence``: whether each is kept."""


class Kept:
    """A tensor that a unit saved and that stays alive, seen by autograd through the member's hooks."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()  # with its node it would lead back to the slot that autograd holds
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """Return the saved tensor."""
        check_unchanged(self._tensor, self._version, "a tensor that a kept call saved")
        return self._tensor


class _Stashed(NamedTuple):
    """A result of a kept unit."""

    tensor: Tensor
    version: int
    requires_grad: bool

    def value(self) -> Tensor:
        check_unchanged(self.tensor, self.version, "the result of a kept call")
        return self.tensor.detach().requires_grad_(self.requires_grad)


class _Hollow(NamedTuple):
    """A result of a skipped unit: reading it fails loudly, since nothing that is needed may."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def value(self) -> Tensor:
        return hollow(self.shape, self.stride, self.dtype, self.device).requires_grad_(self.requires_grad)


class _Given(NamedTuple):
    """A result that is one of the unit's arguments."""

    number: int


class Inputs:
    """The arguments of the unit that is running, by storage; the pack hook asks for them."""

    __slots__ = ("leaves", "sources", "storages")

    def __init__(self, leaves: list[Tensor]) -> None:
        self.leaves = leaves
        self.storages = {_torch_private.storage_key(leaf): number for number, leaf in enumerate(leaves)}
        self.sources: list[tuple[int, int]] = []

    def takes(self, tensor: Tensor) -> bool:
        """Whether a replay can make `tensor` from an argument; then the next slot stands for it."""
        number = self.storages.get(_torch_private.storage_key(tensor))
        if number is None or tensor.is_conj() or tensor.is_neg():
            return False
        argument = self.leaves[number]
        if tensor.dtype is not argument.dtype or argument.layout is not torch.strided:
            return False
        self.sources.append((number, int(tensor.storage_offset())))
        return True


class Unit:
    """One run of a unit, with what a replay hands out in its place.

    Attributes:
        key: the unit's key.
        start: number of slots in the frame when it began.
        arguments: how many tensors it was given.
        generators: how many there were, those of the member first and then those that it was given.
        sources: for each slot since, which of them it is a view of, and at which offset in the storage.
        result: its result, encoded.
        leaves: the tensors in the result.
        random: those that it moved, by number since a replay may make its own, with their states after it.
    """

    __slots__ = ("arguments", "generators", "key", "leaves", "random", "result", "sources", "start")

    def __init__(
        self,
        key: str,
        start: int,
        inputs: Inputs,
        result: Any,
        *,
        kept: bool,
        generators: int,
        random: list[tuple[int, bytes]],
    ) -> None:
        """Take what `key` returned.

        Raises:
            NotApplicable: it returned a view of an argument.
        """
        self.key = key
        self.start = start
        self.arguments = len(inputs.leaves)
        self.sources = inputs.sources
        self.generators = generators
        self.random = random
        leaves: list[Tensor] = []
        self.result = encode((result,), leaves)
        self.leaves = [self._result(leaf, inputs, kept) for leaf in leaves]

    @property
    def name(self) -> str:
        """Name of the module or torch function, without its occurrence."""
        return self.key.rpartition("/")[2].rpartition("#")[0]

    @property
    def hollow(self) -> bool:
        """Whether its result cannot be read."""
        return any(isinstance(leaf, _Hollow) for leaf in self.leaves)

    def hand_out(self, arguments: list[Tensor]) -> Any:
        """Return what the unit returned in forward, for a replay that gave it `arguments`."""
        leaves = [arguments[leaf.number] if isinstance(leaf, _Given) else leaf.value() for leaf in self.leaves]
        return decode(self.result, leaves)[0]

    def _result(self, leaf: Tensor, inputs: Inputs, kept: bool) -> _Stashed | _Hollow | _Given:
        for number, argument in enumerate(inputs.leaves):
            if leaf is argument:
                return _Given(number)
        if _torch_private.storage_key(leaf) in inputs.storages:
            raise NotApplicable(
                f"{self.key} returns a view of its argument. Recompute it, which costs next to nothing."
            )
        if kept:
            return _Stashed(leaf.detach(), _torch_private.version(leaf), leaf.requires_grad)
        return _Hollow(*_torch_private.geometry(leaf), leaf.dtype, leaf.device, leaf.requires_grad)
