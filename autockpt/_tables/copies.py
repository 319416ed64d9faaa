"""Which of a call's arguments other ranks may have the same, by the checksums that were taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._data.copies import CopiedTensors
from .._watch.marks import SeenCall


def copies_of(calls: Sequence[SeenCall], storages: Iterable[Sequence[int]]) -> CopiedTensors | None:
    """Return the checksums that were taken, by call; None where none were.

    Args:
        calls: the calls.
        storages: of each, the tensors that it was given, by their numbers in the profile.
    """
    sums = {
        f"{call.name}#{call.occurrence}": tuple(pairs)
        for call, given in zip(calls, storages, strict=True)
        if (pairs := [(tensor, each) for tensor, each in zip(given, call.sums, strict=False) if each and tensor >= 0])
    }
    return CopiedTensors(sums=sums) if sums else None
