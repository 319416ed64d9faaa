"""The stash of a plan that moves tensors off the device."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import msgspec
import torch

from .._data.errors import NotApplicable
from .._data.offload import HOST, SHARD, Offload
from .._ranks.layers import sharing_group
from .._torch import private
from .._torch.devices import device_of
from . import open_stash
from .base import NoRoom, Stash
from .file import FileStash
from .overlap import OverlappedStash, Sent
from .shard import ShardStash
from .space.memory import HostMemory, pageable
from .spill import SpilledTensor

MEASURED_BYTES = 1 << 24
"""So many bytes are moved there and back to measure how fast that is."""

FEW_BYTES = 1 << 12
"""So few bytes are moved to measure the time that each tensor takes besides that of its bytes."""

TRIES = 3
"""How often each is measured. The first write makes a file grow, and the first pinned copy takes memory of the system:
the best one counts."""


class PlanStash:
    """Opens the stash of each device as its first tensor comes. A copy of this object opens stashes of its own.

    Args:
        where: ``host``, a folder, or ``shard``.
        group: for ``shard``, the name of the process group whose ranks keep parts.
    """

    def __init__(self, where: str = HOST, group: str = "") -> None:
        self._where, self._group = where, group
        self._open: dict[str, Stash | OverlappedStash] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return PlanStash, (self._where, self._group)

    def of(self, device: torch.device) -> Stash | OverlappedStash:
        """Return the stash for tensors of a device.

        Raises:
            NoRoom: no stash can be opened.
        """
        with self._lock:
            if device.type not in self._open:
                self._open[device.type] = self._opened(device)
            return self._open[device.type]

    def _opened(self, device: torch.device) -> Stash | OverlappedStash:
        if self._where == SHARD:
            return ShardStash(self._group)
        if self._where != HOST:
            return FileStash(self._where)
        lanes = device_of(device).lanes()
        if lanes is None:
            return open_stash(device)
        return OverlappedStash(lanes, HostMemory().take, private.empty_pinned_cache)


def send(
    stash: Stash | OverlappedStash, row: torch.Tensor, source: torch.Tensor, underway: list[Sent] | None
) -> SpilledTensor | Sent:
    """Put a row of bytes into a stash.

    Args:
        stash: the stash.
        row: the bytes.
        source: a tensor whose version counts their changes.
        underway: if the copy overlaps with compute, the row is appended here, and the device does not wait for it yet.
            If it is None, the device waits at once.

    Raises:
        NoRoom: the stash has no room.
    """
    if not isinstance(stash, OverlappedStash):
        return SpilledTensor(stash, row)
    sent = stash.send(row, source)
    if underway is None:
        sent.settle()
    else:
        underway.append(sent)
    return sent


def refuse_no_way(where: str, device: torch.device) -> None:
    """Refuse a place to which tensors of a device cannot be moved.

    Raises:
        NotApplicable: it is such a place.
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


def rates_of(device: torch.device, room_bytes: int) -> Offload | None:
    """Measure how fast tensors get from a device to the host, in at most `room_bytes` of the device.

    Return None if no tensor can go there, or if there is no room now.
    """
    most_bytes = min(MEASURED_BYTES, room_bytes // 3)  # what is moved is on the device twice as it comes back
    with contextlib.suppress(NoRoom):
        if device_of(device).lanes() is not None and most_bytes > FEW_BYTES:
            return with_measured_rates(Offload.of(HOST), device, most_bytes)
    return None


def stash_of(offload: Offload | None, model: torch.nn.Module) -> PlanStash:
    """Return the stash to which a plan moves tensors of a model.

    Raises:
        NotApplicable: they cannot be moved there.
    """
    where = HOST if offload is None else offload.where
    if offload is not None and offload.is_shard:
        return PlanStash(where, sharing_group(model, offload))
    for device in {parameter.device for parameter in model.parameters()}:
        refuse_no_way(where, device)
    return PlanStash(where)


def with_measured_rates(
    offload: Offload, device: torch.device, most_bytes: int = MEASURED_BYTES, *, group: str = ""
) -> Offload:
    """Return `offload` with the rates that copies of so many bytes reach now; takes some 50 ms.

    With a `group`, all its ranks call this.

    Raises:
        NoRoom: nothing can wait there.
    """
    stash = PlanStash(offload.where, group).of(device)
    few = sum(_seconds(stash, FEW_BYTES, device))
    try:
        size, (write, read) = most_bytes, _seconds(stash, most_bytes, device)
    except NoRoom:  # a smaller size may still fit
        size = most_bytes >> 8
        write, read = _seconds(stash, size, device)
    return msgspec.structs.replace(
        offload,
        write_rate=size / write,
        read_rate=size / read,
        move_seconds=few,
        measured=True,
        assumed=False,
    )


def _seconds(stash: Stash | OverlappedStash, n_bytes: int, device: torch.device) -> tuple[float, float]:
    """Return how long some bytes take to a stash, and back."""
    on_host = device.type == "cpu"  # then memory outside torch's allocator: somebody may count that one's peak
    row = pageable(n_bytes).zero_() if on_host else torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    writes, reads = [], []
    for _ in range(TRIES):
        began = time.perf_counter()
        written, read = (time.perf_counter() for _ in _there_and_back(stash, row))
        writes.append(written - began)
        reads.append(read - written)
    return min(writes), min(reads)


def _there_and_back(stash: Stash | OverlappedStash, row: torch.Tensor) -> Iterator[None]:
    """Move a row of bytes to a stash and back. It yields once the row has arrived, each time, for a clock."""
    if isinstance(stash, OverlappedStash):
        sent = stash.send(row, row)  # the tensor, and the memory that it comes back to
        sent.settle()
        stash.lanes.finish()
        yield
        sent.restore()
        stash.lanes.finish()
        yield
        return
    token = stash.put(row)
    yield
    stash.get(token, row)
    stash.free(token)
    yield
