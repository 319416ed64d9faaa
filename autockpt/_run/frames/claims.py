"""Which replays wait for each other: those of several threads that replace entries of one module's dicts.

    one thread    claim ├─ put back ── forward ── undone ┤
    another       claim ·············· waits ············├─ put back ── forward ── undone ┤

What a replay finds in a dict is what it puts there afterwards. Two at once would take each other's copies for the
module's own, and the later one would leave such a copy behind for good.

A claim lasts for the whole replay. Nothing that a replay does waits for another replay, so autograd's threads, one a
device, cannot come to wait for each other in a circle: a replay only runs forwards, and a backward that starts in one
differentiates what that replay computed, for which no frame exists. The exception is a forward that differentiates a
graph which it has kept from an earlier step. Where that replays on the thread that has the claim, it goes on, for a
thread never waits for itself. Where it replays the same module on the thread of another device, both wait for ever.

Replays of different modules never wait. One lock for all would make them: it would hold up training of another model,
and for ever where forwards in several threads meet, as collectives do among ranks that are threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any


class Claim:
    """The dicts whose entries one replay replaces.

    It lasts while `running` is held, by a `with` around the replay: no error or interrupt leaves it behind. It is an
    object of the replay's and no attribute of a module's, which copies and pickles would take along.

    Attributes:
        running: held by the replay's own thread, until all is put back.
    """

    __slots__ = ("_dicts", "_thread", "running")

    def __init__(self) -> None:
        self.running = threading.Lock()
        self._dicts: set[int] = set()
        self._thread = threading.get_ident()

    def take(self, dicts: Iterable[dict[str, Any]]) -> None:
        """Claim these dicts too, all at once, as soon as no replay of another thread has a claim on any of them.

        All at once, so that no two replays have what the other one waits for. Who takes more later must always do so in
        the same order: buffers, then parameters, then whole modules.
        """
        wanted = {id(owned) for owned in dicts}
        while True:
            with _lock:
                _claims[:] = [claim for claim in _claims if claim.running.locked()]
                other = next((claim for claim in _claims if claim._excludes(self._thread, wanted)), None)
                if other is None:
                    self._dicts |= wanted
                    if self not in _claims:
                        _claims.append(self)
                    return
            with other.running:
                pass

    def _excludes(self, thread: int, wanted: set[int]) -> bool:
        """Whether a replay in `thread` must wait for this one; in the same thread it is nested in this one."""
        return self._thread != thread and not self._dicts.isdisjoint(wanted)


# Of all threads, because what they share is the modules, and those may belong to several plans. It holds numbers, no
# tensors and no modules, and of a replay that is over only until the next one takes a claim.
_claims: list[Claim] = []
_lock = threading.Lock()
