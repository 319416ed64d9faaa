"""Records which calls are replayed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ..._calls.roots import roots
from ..frames.frame import Frame, Replayer
from ..frames.unit import UnitRun
from .patches import patched_behind


class WatchedReplayer:
    """Wraps the replayer of a frame, and notes what is replayed.

    Args:
        replayed: gets, for each replay, the keys of its calls and of the units that forward came to in them.
        replayer: replays the frame.
    """

    def __init__(self, replayed: list[tuple[str, ...]], replayer: Replayer) -> None:
        self._replayed, self._replayer = replayed, replayer
        self.compares = replayer.compares
        self.begins, self.ends, self.saves = replayer.begins, replayer.ends, replayer.saves
        self.descend = replayer.descend

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Replay the frame; arguments and errors as for `Replayer.replay`."""
        entries = (entry for call in frame.calls if call.units is not None for entry in call.units.entries)
        met = (entry.key for entry in entries if isinstance(entry, UnitRun))
        self._replayed.append((*(call.key for call in frame.calls), *met))
        self._replayer.replay(frame, last, backward)


@contextmanager
def watching_replays(model: nn.Module) -> Iterator[list[tuple[str, ...]]]:
    """Watch the plan that is on a model: yields a list that gets, for each replay, the keys of its calls and units.

    Frames that begin inside the block count, in all threads, since backward of a device runs in its own thread.
    """
    replayed: list[tuple[str, ...]] = []
    handles = {known[1] for root in roots(model).values() if (known := patched_behind(root)) is not None}
    for handle in handles:
        handle.watched = functools.partial(WatchedReplayer, replayed)
    try:
        yield replayed
    finally:
        for handle in handles:
            handle.watched = None
