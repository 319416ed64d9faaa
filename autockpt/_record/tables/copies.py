"""Which arguments of a call may be the same on other ranks: their checksums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..._data.step.copies import CopiedTensors
from ..._data.text.keys import key_of
from ..watch.marks import SeenCall


def copies_of(calls: Sequence[SeenCall], storages: Iterable[Sequence[int]]) -> CopiedTensors | None:
    """Return the checksums of arguments, by call; None if none were taken.

    Args:
        calls: the calls.
        storages: for each call, the tensors that it was given, as numbers in the profile.
    """
    sums = {
        key_of(call.name, call.occurrence): tuple(pairs)
        for call, given in zip(calls, storages, strict=True)
        if (pairs := [(tensor, each) for tensor, each in zip(given, call.sums, strict=False) if each and tensor >= 0])
    }
    return CopiedTensors(sums=sums) if sums else None
