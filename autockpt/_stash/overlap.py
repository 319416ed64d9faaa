"""Tensors that a plan moves from a device to the host; the copies overlap with compute.

    computing   │ a      │ b      │ c      │ ......... │ c'     │ b'     │ a'     │
    lane out       └─ a ──────┐
    lane back                                          │ ┌──── a ────────┐
    a's memory  ├─────────────────┤                    ├──────────────────────────┤
                 saved        the end of b             b's backward begins   a node reads it

A plan names a call, here `b`. At its end in forward the device waits for the copy, and only then is the memory freed.
When the backward of that call begins, memory for the way back is allocated. So lifetimes on the device do not depend on
how fast the link is: a slow link only costs time. If the plan names no call, the device waits at once, both ways. The
host never waits.

Memory of the host is pinned. It is allocated once, and the next step uses it again. It is freed with the stash's last
holder.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch

from .._torch import private
from .._torch.devices.lanes import AskedCopy, Lanes
from .host import aligned
from .space.arenas import Arenas
from .space.free_list import FreeList


class OverlappedStash:
    """Keeps rows of bytes of a device in memory of the host; several threads may use it.

    Args:
        lanes: run the copies.
        take: takes memory of so many bytes.
        give_back: is called as the stash closes, after it has released all memory that it took.
    """

    def __init__(self, lanes: Lanes, take: Callable[[int], torch.Tensor], give_back: Callable[[], object]) -> None:
        self.lanes = lanes
        self._arenas, self._spans = Arenas(take), FreeList()
        self._let_go: deque[tuple[int, int]] = deque()  # garbage collection may free in the middle of `send`
        self._last: AskedCopy | None = None
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._arenas, give_back).atexit = False

    def send(self, row: torch.Tensor, source: torch.Tensor) -> Sent:
        """Begin to copy a row of bytes to the host.

        Args:
            row: the bytes.
            source: a tensor whose version counts changes of the bytes. The device must have waited before any change.

        Raises:
            NoRoom: the host has no more memory.
        """
        with self._lock:
            while self._let_go:
                self._spans.free(*self._let_go.popleft())
            place = self._spans.allocate(aligned(row.nbytes))
            try:
                self._arenas.grow(self._spans.end_bytes)
                # What was at this place before may still be on its way back.
                mark = self.lanes.run("out", lambda: self._copy(place, row, out=True), self._last)
            except BaseException:
                self._spans.free(place, aligned(row.nbytes))
                raise
        return Sent(self, place, source, row.nbytes, mark)

    def bring(self, place: int, row: torch.Tensor, after: AskedCopy) -> AskedCopy:
        """Begin to copy what lies at a place into a row of bytes."""
        with self._lock:
            self._last = self.lanes.run("back", lambda: self._copy(place, row, out=False), after)
            return self._last

    def free(self, place: int, size_bytes: int) -> None:
        """Free what lies at a place; garbage collection may call this at any moment."""
        self._let_go.append((place, aligned(size_bytes)))

    def _copy(self, place: int, row: torch.Tensor, *, out: bool) -> None:
        begin = 0
        for own in self._arenas.rows(place, row.nbytes):
            part = row[begin : begin + own.nbytes]
            begin += own.nbytes
            source, target = (part, own) if out else (own, part)
            target.copy_(source, non_blocking=True)


def _close(arenas: Arenas, give_back: Callable[[], object]) -> None:
    arenas.drop()
    give_back()


class Sent:
    """A row of bytes that was sent to the host: it is on its way, waits there, or comes back.

    Attributes:
        changed: whether it was written to before the device had waited, so that nobody knows what arrived.
    """

    __slots__ = (
        *("__weakref__", "_back", "_device", "_out", "_place", "_size_bytes", "_source", "_stash", "_version"),
        "changed",
    )

    def __init__(
        self, stash: OverlappedStash, place: int, source: torch.Tensor, size_bytes: int, out: AskedCopy
    ) -> None:
        self._stash, self._place, self._out, self.changed = stash, place, out, False
        self._source: torch.Tensor | None = source  # read by the copy
        self._version = private.version(source)
        self._device, self._size_bytes = source.device, size_bytes
        self._back: tuple[torch.Tensor, AskedCopy] | None = None

    def settle(self) -> None:
        """Have the device wait until the row is on the host, and free its memory on the device."""
        if self._source is not None:
            self._stash.lanes.wait(self._out, self._source)
            self.changed = private.version(self._source) != self._version
            self._source = None

    def prefetch(self) -> tuple[torch.Tensor, AskedCopy]:
        """Allocate memory of the device for the way back, and begin to copy; again only after `restore` has used it."""
        self.settle()
        if self._back is None:
            row = torch.empty(self._size_bytes, dtype=torch.uint8, device=self._device)
            self._back = row, self._stash.bring(self._place, row, self._out)
        return self._back

    def restore(self) -> torch.Tensor:
        """Return a new row with the same bytes, for which the device waits. Each call returns another row."""
        (row, mark), self._back = self.prefetch(), None
        self._stash.lanes.wait(mark, row)
        return row

    def __del__(self) -> None:
        # Memory that a copy reads or writes is freed only after the copy.
        self.settle()
        if self._back is not None:
            self._stash.lanes.wait(self._back[1], self._back[0])
        self._stash.free(self._place, self._size_bytes)


def arrive(sent: Sequence[Sent], results: Iterable[torch.Tensor]) -> None:
    """Free the rows that were sent, at the end of the call that the plan names; fetch them when its backward begins.

    Args:
        sent: the rows, in the order in which they were sent.
        results: those of the call.
    """
    for each in sent:
        each.settle()
    node = next((result.grad_fn for result in results if result.grad_fn is not None), None)
    if node is None:
        return  # they are fetched when they are read
    waiting = [weakref.ref(each) for each in reversed(sent)]  # what was sent last is read first

    def fetch(_: object) -> None:
        if not private.keeps_graph():  # if it does, each pass fetches its own
            with torch.no_grad(), private.no_torch_functions():
                for reference in waiting:
                    if (alive := reference()) is not None:
                        alive.prefetch()

    node.register_prehook(fetch)
