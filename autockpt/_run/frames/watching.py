"""Watching replays from outside, for those who check that a plan does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .frame import Frame
from .units import Unit


@contextmanager
def watching_replays() -> Iterator[list[tuple[str, ...]]]:
    """Append, for every frame that is replayed inside the block, the keys of its calls and of the units met in them.

    Frames of all threads count: backward of a device runs in a thread of its own.
    """
    replayed: list[tuple[str, ...]] = []
    plain = Frame.replay

    def replay(self: Frame) -> None:
        units = (entry for call in self.calls if call.selection is not None for entry in call.selection.entries)
        met = (unit.key for unit in units if isinstance(unit, Unit))
        replayed.append((*(call.key for call in self.calls), *met))
        plain(self)

    Frame.replay = replay  # type: ignore[method-assign]
    try:
        yield replayed
    finally:
        Frame.replay = plain  # type: ignore[method-assign]
