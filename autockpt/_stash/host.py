"""Where tensors wait in memory of the host.

    of a device     spans of a few arenas, pinned where they can be: see `arenas.py` and `memory.py`
    of a CPU        memory of its own for each tensor, outside torch's allocator

A model saves one storage through several tensors: a linear layer's input, which the layer before saved in another
shape, or rotations that all layers use. On a device, the same stretch of a storage is stored once, as long as its bytes
are the same. The bytes are compared, since not every write to a storage raises the version of all of its views.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from .._calls.layout import flat, is_dense
from .._torch import private
from .base import NoRoom, Token
from .space.arenas import Arenas, Cursor
from .space.free_list import FreeList
from .space.memory import pageable
from .space.pieces import Copier, gaps, longest_piece, pieces, stored_bytes

ALIGNMENT_BYTES = 64
"""A line of the processor's cache, and a multiple of every element's size."""

Stretch: TypeAlias = tuple[object, ...]


class MemoryStash:
    """Keeps tensors of a CPU in memory outside torch's allocator; see `Stash`.

    In torch's own memory, tensors of a graph that outlives the step would be on the allocator's tape. This stash takes
    a fraction of the time of a file: pages that earlier steps freed are used again.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, torch.Tensor] = {}
        self._places = itertools.count()

    def put(self, tensor: torch.Tensor) -> Token:
        source = _copied(tensor)
        try:
            memory = pageable(source.nbytes)
        except MemoryError as error:
            waiting_bytes = sum(each.nbytes for each in list(self._waiting.values()))
            raise NoRoom(
                f"the step's saved tensors wait in memory, which took {waiting_bytes:,} bytes and not "
                f"{source.nbytes:,} more ({error}). Free memory, or record a smaller batch."
            ) from error
        token = Token(next(self._places), source.nbytes)
        self._waiting[token.place] = memory.view(source.dtype).view(source.shape).copy_(source)
        return token

    def get(self, token: Token, tensor: torch.Tensor) -> None:
        _copied(tensor).copy_(self._waiting[token.place])

    def free(self, token: Token) -> None:
        del self._waiting[token.place]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes; or the tensor itself, detached, if other elements lie between its own."""
    return flat(tensor) if is_dense(tensor) else tensor.detach()


@dataclass(slots=True)
class _Block:
    """Bytes that are stored once.

    Attributes:
        token: where they are.
        stretch: which bytes of a storage they were.
        holders: how many tensors have them.
    """

    token: Token
    stretch: Stretch
    holders: int = 1


class HostStash:
    """Keeps tensors of a device in arenas; see `Stash`.

    Args:
        take: takes memory of so many bytes.
        give_back: is called as the stash closes, after it has released all memory that it took.
    """

    def __init__(self, take: Callable[[int], torch.Tensor], give_back: Callable[[], object]) -> None:
        self._arenas, self._copier, self._spans = Arenas(take), Copier(take), FreeList()
        self._blocks: dict[int, _Block] = {}  # by place
        self._stretches: dict[Stretch, _Block] = {}
        self._let_go: deque[Token] = deque()  # garbage collection may free in the middle of `put`
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._arenas, self._copier, give_back).atexit = False

    def put(self, tensor: torch.Tensor) -> Token:
        stretch = _stretch_of(tensor)
        with self._lock:
            self._take_back()
            cut = pieces(tensor, self._longest_bytes)
            known = self._stretches.get(stretch)
            if known is not None and self._holds(known.token, cut):
                known.holders += 1
                return known.token
            token = self._allocate(stored_bytes(tensor))
            cursor = Cursor(self._arenas, token.place)
            try:
                self._copier.write(cut, cursor.write, cursor.ahead)
            except BaseException:
                self._spans.free(token.place, aligned(token.stored_bytes))
                raise
            self._blocks[token.place] = self._stretches[stretch] = _Block(token, stretch)
        return token

    def get(self, token: Token, tensor: torch.Tensor) -> None:
        with self._lock:
            cursor = Cursor(self._arenas, token.place)
            self._copier.read(pieces(tensor, self._longest_bytes), cursor.read, cursor.ahead)

    def free(self, token: Token) -> None:
        self._let_go.append(token)

    def _allocate(self, size_bytes: int) -> Token:
        aligned_bytes = aligned(size_bytes)
        place = self._spans.allocate(aligned_bytes)
        try:
            self._arenas.grow(self._spans.end_bytes)
        except NoRoom:
            self._spans.free(place, aligned_bytes)
            raise
        return Token(place, size_bytes)

    def _take_back(self) -> None:
        while self._let_go:
            token = self._let_go.popleft()
            block = self._blocks[token.place]
            block.holders -= 1
            if not block.holders:
                del self._blocks[token.place]
                if self._stretches.get(block.stretch) is block:
                    del self._stretches[block.stretch]
                self._spans.free(token.place, aligned(token.stored_bytes))

    @property
    def _longest_bytes(self) -> int:
        """How long pieces may be."""
        return longest_piece(self._arenas.size_bytes)

    def _holds(self, token: Token, cut: list[torch.Tensor]) -> bool:
        """Whether the bytes of a tensor's pieces equal those that wait for `token`."""
        cursor, same = Cursor(self._arenas, token.place), True

        def compare(row: torch.Tensor) -> None:
            nonlocal same
            for part in flat(row).split(self._longest_bytes):
                same = same and cursor.matches(self._copier.on_host(part))

        self._copier.write(cut, compare)
        return same


def _stretch_of(tensor: torch.Tensor) -> Stretch:
    """Return which bytes of its storage a tensor has, whatever its shape."""
    begin = tensor.storage_offset() * tensor.itemsize
    return private.storage_key(tensor), begin, stored_bytes(tensor), gaps(tensor)


def aligned(size_bytes: int) -> int:
    """Return the bytes of a span for so many bytes. They are never 0, so no two spans begin at one place."""
    return max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


def _close(arenas: Arenas, copier: Copier, give_back: Callable[[], object]) -> None:
    arenas.drop()
    copier.drop()
    give_back()
