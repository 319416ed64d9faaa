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

from ... import _torch_private
from ..._calls.values import decode, encode
from ..._data.errors import NotApplicable
from .hollow import hollow
from .slots import Tags, check_unchanged, reads_alike, tagged, tags_of

Choice: TypeAlias = dict[str, bool]
"""Functions that a call's own code does not run again in a replay, as ``name#occurrence``; whether each is kept."""


class _Stashed(NamedTuple):
    """A result of a kept unit."""

    tensor: Tensor
    version: int
    requires_grad: bool
    tags: Tags

    def value(self) -> Tensor:
        check_unchanged(self.tensor, self.version, "the result of a kept call")
        return tagged(self.tensor.detach().requires_grad_(self.requires_grad), self.tags)


class _Hollow(NamedTuple):
    """A result of a skipped unit: reading it fails loudly, since nothing that is needed may."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def value(self) -> Tensor:
        return hollow(self.shape, self.stride, self.dtype, self.device).requires_grad_(self.requires_grad)


class _Sourced(NamedTuple):
    """A result that is one of the unit's arguments."""

    source: int
    tags: Tags

    def value(self, arguments: list[Tensor]) -> Tensor:
        return tagged(arguments[self.source], self.tags)


class Inputs:
    """The arguments of the unit that is running, by storage; the pack hook asks for them."""

    __slots__ = ("leaves", "sources", "storages")

    def __init__(self, leaves: list[Tensor]) -> None:
        self.leaves = leaves
        self.storages = {_torch_private.storage_key(leaf): number for number, leaf in enumerate(leaves)}
        self.sources: list[tuple[int, int]] = []

    def takes(self, tensor: Tensor, storage: int) -> bool:
        """Whether a replay can make `tensor` from an argument; then the next slot stands for it.

        Args:
            tensor: what is saved.
            storage: its storage's key.
        """
        source = self.storages.get(storage)
        if source is None:
            return False
        whole = self.leaves[source]
        if whole.layout is not torch.strided or not reads_alike(tensor, whole):
            return False
        offset = int(tensor.storage_offset()) - int(whole.storage_offset())
        self.sources.append((source, offset))
        return True


class Unit:
    """One run of a unit, with what a replay hands out in its place.

    Attributes:
        key: the unit's key.
        start: number of slots in the frame when it began.
        arguments: how many tensors it was given.
        generators: how many there were, those of the member first and then those that it was given.
        sources: for each slot since, the argument that it is a view of, and how far behind its first element
            it begins.
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
        leaves = [leaf.value(arguments) if isinstance(leaf, _Sourced) else leaf.value() for leaf in self.leaves]
        return decode(self.result, leaves)[0]

    def _result(self, leaf: Tensor, inputs: Inputs, kept: bool) -> _Stashed | _Hollow | _Sourced:
        for number, argument in enumerate(inputs.leaves):
            if leaf is argument:
                return _Sourced(number, tags_of(leaf))
        storage = _torch_private.storage_key(leaf)
        if storage in inputs.storages:
            raise NotApplicable(
                f"{self.key} returns a view of its argument. Recompute it, which costs next to nothing."
            )
        if kept:
            return _Stashed(leaf.detach(), _torch_private.version(leaf), leaf.requires_grad, tags_of(leaf))
        return _Hollow(*_torch_private.geometry(leaf), leaf.dtype, leaf.device, leaf.requires_grad)
