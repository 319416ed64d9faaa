"""Boundaries that all ranks have alike which share layers (tensor parallelism): each rank keeps a part of every one.

    forward    rank 0   x ── part 0 ─┐      rank 1   x ── part 1 ─┐      and a checksum of all of x
    backward            part 0, part 1 ── gathered ──▶ x on both         if the checksums are the same

A replay gathers what it was given, as it runs collectives of its own: all ranks have one plan, so they replay the same
segments in the same order. The checksums come along: all ranks find out together where one of them had another x.

Source: Megatron-LM, `--distribute-saved-activations`. Exact; O(bytes).
"""

from __future__ import annotations

import itertools

import torch

from .. import _torch_private as private
from .._calls.checksum import number_of
from .._data.errors import ReplayError
from .base import Token

UNLIKE = (
    "a boundary that waits in parts (offload='shard') was not the same on all {0} ranks that share layers: its "
    "checksums are {1}. Give such ranks the same batch, and have them draw the same random numbers outside of what "
    "they share; or leave offload= out"
)


BEGINS = UNLIKE.partition("{")[0]


def is_unlike(reason: str) -> bool:
    """Whether that is why a replay failed: ranks did not have its boundary alike."""
    return BEGINS in reason


class ShardStash:
    """Keeps this rank's part of what all ranks of a group have. See `Stash`: `get` is a collective.

    Args:
        group: name of their process group.
    """

    def __init__(self, group: str) -> None:
        ranks = private.ranks_in(private.group_of(group))
        self._group, self._ranks, self._own = group, len(ranks), ranks.index(private.own_rank())
        self._places = itertools.count()
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def put(self, tensor: torch.Tensor) -> Token:
        row, place = tensor.detach(), next(self._places)
        size_bytes = -(-row.nbytes // self._ranks)
        part = torch.empty(size_bytes, dtype=torch.uint8, device=row.device)
        own = row[self._own * size_bytes :][:size_bytes]
        part[: len(own)].copy_(own)
        self._parts[place] = part, number_of(row)
        return Token(place, row.nbytes)

    def get(self, token: Token, tensor: torch.Tensor) -> None:
        """Gather the parts.

        Raises:
            ReplayError: they are not of the same bytes; on all ranks.
        """
        part, number = self._parts[token.place]
        padded_bytes, numbers = len(part) * self._ranks, number.new_empty(self._ranks)
        whole = tensor if len(tensor) == padded_bytes else tensor.new_empty(padded_bytes)
        private.gather_parts(whole, part, self._group)
        private.gather_parts(numbers, number, self._group)
        if whole is not tensor:
            tensor.copy_(whole[: len(tensor)])
        if len(found := dict.fromkeys(numbers.tolist())) > 1:
            raise ReplayError(UNLIKE.format(self._ranks, ", ".join(map(str, found))))

    def free(self, token: Token) -> None:
        self._parts.pop(token.place, None)
