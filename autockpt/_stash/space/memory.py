"""Memory of the host: pinned as long as enough is left to others, then pageable, then none.

Pinned memory cannot be swapped out or reclaimed. If a machine runs out of memory, the kernel kills a process, without
an error that could be caught. So a stash first asks how much is available, and leaves a share of all memory to others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from ..base import NoRoom

_log = logging.getLogger("autockpt")

PINNED_LEAVES, PAGEABLE_LEAVES = 1 / 8, 1 / 16
"""Shares of all memory that are left to others. Pageable memory may go further: the kernel can swap it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What memory there is for this process, in bytes."""

    total_bytes: int
    available_bytes: int


def room() -> Room | None:
    """Ask Linux for the memory that is there, also within the limit of a container; None if Linux does not tell."""
    found = _figures(Path("/proc/meminfo"))
    if not found.keys() >= {"MemTotal:", "MemAvailable:"}:
        return None
    total_bytes, available_bytes = found["MemTotal:"] * 1024, found["MemAvailable:"] * 1024
    group = Path("/sys/fs/cgroup")
    limit_bytes, current_bytes = _figure(group / "memory.max"), _figure(group / "memory.current")
    if limit_bytes is not None and current_bytes is not None:
        cached_bytes = _figures(group / "memory.stat").get("inactive_file", 0)  # counts as current, is reclaimed first
        total_bytes = min(total_bytes, limit_bytes)
        available_bytes = min(available_bytes, limit_bytes - current_bytes + cached_bytes)
    return Room(total_bytes=total_bytes, available_bytes=max(0, available_bytes))


def _figures(file: Path) -> dict[str, int]:
    """Read a file with a name and a figure on each line."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _figure(file: Path) -> int | None:
    """Read a file of one figure; None if it has none, for example if there is no limit."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def pageable(size_bytes: int) -> torch.Tensor:
    """Return a row of bytes outside torch's allocator, hence not on that one's tape.

    Raises:
        MemoryError: the system refuses.
    """
    return torch.from_numpy(numpy.empty(size_bytes, numpy.uint8))


def pinned(size_bytes: int) -> torch.Tensor:
    """Return a row of bytes that a device copies from and to directly.

    Raises:
        RuntimeError: the driver refuses, or there is none.
    """
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


class HostMemory:
    """Takes memory of the host for one stash.

    Args:
        room: tells what there is.
        pinned: takes pinned memory.
    """

    def __init__(
        self,
        room: Callable[[], Room | None] = room,
        pinned: Callable[[int], torch.Tensor] = pinned,
    ) -> None:
        self._room, self._pinned = room, pinned
        self._pins = True
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> torch.Tensor:
        """Return a row of bytes.

        Raises:
            NoRoom: there is too little, even pageable.
        """
        memory = self._take(size_bytes)
        self._taken_bytes += size_bytes
        return memory

    def _take(self, size_bytes: int) -> torch.Tensor:
        room = self._room()
        if self._pins:
            why = self._short(room, size_bytes, PINNED_LEAVES)
            try:
                if not why:
                    return self._pinned(size_bytes)
            except RuntimeError as error:
                why = str(error).partition("\n")[0]
            self._pins = False
            _log.info(
                "the step's saved tensors have %s bytes of pinned memory, and what follows waits in pageable memory, "
                "which is slower to copy: %s",
                f"{self._taken_bytes:,}",
                why,
            )
        why = self._short(room, size_bytes, PAGEABLE_LEAVES)
        try:
            if not why:
                return pageable(size_bytes)
        except MemoryError as error:
            why = str(error)
        raise NoRoom(
            f"the step's saved tensors wait in memory of the host, which took {self._taken_bytes:,} bytes and not "
            f"{size_bytes:,} more: {why}. Free memory of the host, or begin with a smaller batch."
        )

    @staticmethod
    def _short(room: Room | None, size_bytes: int, leaves: float) -> str:
        """Say why so much cannot be taken; empty if it can, or if it is not known what there is."""
        if room is None:
            return ""
        left_bytes = round(room.total_bytes * leaves)
        if room.available_bytes - size_bytes >= left_bytes:
            return ""
        return (
            f"{room.available_bytes:,} bytes of {room.total_bytes:,} are available, and {left_bytes:,} are for others"
        )
