"""Watching replays from outside, for those who check that a plan does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .frame import Frame

__all__ = ["watching_replays"]


@contextmanager
def watching_replays() -> Iterator[list[tuple[str, ...]]]:
    """Append, for every frame that is replayed inside the block, the keys of its calls.

    Frames of all threads count: backward of a device runs in a thread of its own.
    """
    replayed: list[tuple[str, ...]] = []
    plain = Frame.replay

    def replay(self: Frame) -> None:
        replayed.append(tuple(call.key for call in self.calls))
        plain(self)

    Frame.replay = replay  # type: ignore[method-assign]
    try:
        yield replayed
    finally:
        Frame.replay = plain  # type: ignore[method-assign]
