"""The stash of a plan that moves tensors off the device."""

from __future__ import annotations

import threading
import time

import torch

from .._data.errors import NotApplicable
from .._data.offload import HOST, Offload
from .._device import device_of
from . import open_stash
from .base import NoRoom, Stash
from .file import FileStash
from .memory import pageable

MEASURED_BYTES = 1 << 24
"""Moved there and back to see how fast that is."""

FEW_BYTES = 1 << 12
"""Moved likewise, to see what each tensor takes besides its bytes."""

TRIES = 3
"""The first write makes a file grow, and the first pinned copy takes memory of the system: the best of some counts."""


class PlanStash:
    """Opens the stash of each device as its first tensor comes. A copy of it opens its own.

    Args:
        where: ``host``, or a folder.
    """

    def __init__(self, where: str = HOST) -> None:
        self._where = where
        self._open: dict[str, Stash] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return PlanStash, (self._where,)

    def of(self, device: torch.device) -> Stash:
        """Return the stash for tensors of a device.

        Raises:
            NoRoom: there is none, or no room in it.
        """
        with self._lock:
            if device.type not in self._open:
                self._open[device.type] = FileStash(self._where) if self._where != HOST else open_stash(device)
            return self._open[device.type]


def refuse_no_way(where: str, device: torch.device) -> None:
    """Refuse a place to which tensors of a device cannot be moved.

    Raises:
        NotApplicable: it is such a one.
    """
    to_host = device_of(device).spills_to_host
    if where == HOST and not to_host:
        raise NotApplicable(
            f"offload='host' moves tensors from a device to the host, and the model is on {device}. On a CPU they can "
            "wait in a file: offload='/a/folder', on a fast disk."
        )
    if where != HOST and to_host:
        raise NotApplicable(
            f"offload={where!r} is a folder, and tensors of {device} can wait in the host's memory only: "
            "offload='host'."
        )
    if where != HOST:
        try:
            FileStash(where)
        except NoRoom as error:
            raise NotApplicable(f"no tensor can wait in offload={where!r}: {error.__cause__}") from error


def with_measured_rates(offload: Offload, device: torch.device) -> Offload:
    """Return where tensors may wait, with the rates that copies reach now; takes some 50 ms.

    Raises:
        NoRoom: nothing can wait there.
    """
    stash = PlanStash(offload.where).of(device)
    few = sum(_seconds(stash, FEW_BYTES, device))
    try:
        size, (write, read) = MEASURED_BYTES, _seconds(stash, MEASURED_BYTES, device)
    except NoRoom:  # which says nothing of smaller ones
        size = MEASURED_BYTES >> 8
        write, read = _seconds(stash, size, device)
    return Offload(
        where=offload.where,
        write_rate=size / write,
        read_rate=size / read,
        move_seconds=few,
        measured=True,
    )


def _seconds(stash: Stash, n_bytes: int, device: torch.device) -> tuple[float, float]:
    """Return how long some bytes take to a stash, and back."""
    on_host = (
        device.type == "cpu"
    )  # there of memory that torch's allocator knows nothing of: somebody may count its peak
    row = pageable(n_bytes).zero_() if on_host else torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    writes, reads = [], []
    for _ in range(TRIES):
        began = time.perf_counter()
        token = stash.put(row)
        written = time.perf_counter()
        stash.get(token, row)
        stash.free(token)
        reads.append(time.perf_counter() - written)
        writes.append(written - began)
    return min(writes), min(reads)
