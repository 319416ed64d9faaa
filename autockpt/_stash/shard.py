"""Boundaries that are the same on all ranks sharing layers (tensor parallelism): each rank keeps a part of each.

    forward    rank 0   x ── part 0 ─┐      rank 1   x ── part 1 ─┐      and a checksum of all of x
    backward            part 0, part 1 ── gathered ──▶ x on both         if the checksums are the same

A replay gathers its boundary. Its own calls run collectives too, so all ranks have one plan, and replay the same
segments in the same order. The checksums are gathered as well: if one rank had another x, all ranks find out.

Source: Megatron-LM, `--distribute-saved-activations`. Exact; O(bytes).
"""

from __future__ import annotations

import itertools

import torch

from .._calls.checksum import number_of
from .._data.errors import ReplayError
from .._torch import private
from .base import Token

UNLIKE = (
    "a boundary that waits in parts (offload='shard') was not the same on all {0} ranks that share layers: its "
    "checksums are {1}. Give these ranks the same batch, and have them draw the same random numbers outside the "
    "layers that they share; or leave offload= out"
)


BEGINS = UNLIKE.partition("{")[0]


def is_unlike(reason: str) -> bool:
    """Whether a replay failed because its boundary was not the same on all ranks; `reason` is its error."""
    return BEGINS in reason


class ShardStash:
    """Keeps this rank's part of tensors that all ranks of a group have. See `Stash`; its `get` is a collective.

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
            ReplayError: the ranks did not put the same bytes; raised on all ranks.
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
