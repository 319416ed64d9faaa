"""A temporary file in which tensors of a CPU wait."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections import deque

import torch

from .._calls.layout import bytes_of
from .._data.errors import ProfilingError
from .base import NoRoom, Token
from .space.free_list import FreeList
from .space.memory import pageable
from .space.pieces import Copier, pieces, stored_bytes


class FileStash:
    """Keeps tensors in a file without a name. It is gone with the last tensor that waits, or with the process.

    See `Stash`. A forked process opens a file of its own as it puts its first tensor.

    Args:
        folder: where the file lies; None for that of temporary files.

    Raises:
        NoRoom: no file can be made in the folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._given, self._process = folder, os.getpid()
        self._descriptor, self._folder = _open(folder)
        self._remedy = "Set TMPDIR to a folder with more room." if folder is None else "Give offload= another folder."
        weakref.finalize(self, os.close, self._descriptor)
        self._copier, self._spans = Copier(pageable), FreeList()
        self._let_go: deque[Token] = deque()  # garbage collection may free in the middle of `put`
        self._lock = threading.Lock()

    def put(self, tensor: torch.Tensor) -> Token:
        cut = pieces(tensor)
        if os.getpid() != self._process:
            self._begin_anew()
        with self._lock:
            while self._let_go:
                self._free(self._let_go.popleft())
            size_bytes, used_bytes = stored_bytes(tensor), self._spans.used_bytes
            token = Token(self._spans.allocate(size_bytes), size_bytes, self._process)
            place = token.place

            def write(row: torch.Tensor) -> None:
                nonlocal place
                rest = bytes_of(row)
                while rest:
                    written_bytes = os.pwrite(self._descriptor, rest, place)
                    place, rest = place + written_bytes, rest[written_bytes:]

            try:
                self._copier.write(cut, write)
            except OSError as error:
                self._free(token)
                raise NoRoom(
                    f"the step's saved tensors wait in a file in {self._folder}, which took {used_bytes:,} bytes and "
                    f"not {size_bytes:,} more ({error.strerror}). {self._remedy}"
                ) from error
        return token

    def _begin_anew(self) -> None:
        """Open a file of this process's own: its parent goes on writing to the file whose descriptor it inherited."""
        self._process, self._lock = os.getpid(), threading.Lock()
        self._descriptor, self._folder = _open(self._given)
        weakref.finalize(self, os.close, self._descriptor)
        self._spans, self._let_go = FreeList(), deque()

    def get(self, token: Token, tensor: torch.Tensor) -> None:
        if token.process != os.getpid():
            raise ProfilingError(
                "a saved tensor waits in a file of the process from which this one was forked. That process may have "
                "overwritten it since. Run forward and backward in the same process."
            )
        place = token.place

        def read(row: torch.Tensor) -> None:
            nonlocal place
            rest = bytes_of(row)
            while rest:
                read_bytes = os.preadv(self._descriptor, [rest], place)
                if not read_bytes:
                    raise ProfilingError(
                        f"a saved tensor waits in a file in {self._folder}, which ends {len(rest):,} bytes too early: "
                        "something else has cut it off. Set TMPDIR to a folder of your own."
                    )
                place, rest = place + read_bytes, rest[read_bytes:]

        with self._lock:
            self._copier.read(pieces(tensor), read)

    def free(self, token: Token) -> None:
        if token.process == self._process:
            self._let_go.append(token)

    def _free(self, token: Token) -> None:
        self._spans.free(token.place, token.stored_bytes)


def _open(folder: str | None) -> tuple[int, str]:
    """Return the descriptor of a new file without a name, and the folder where it lies."""
    try:
        with tempfile.TemporaryFile(prefix="autockpt-", buffering=0, dir=folder) as file:
            return os.dup(file.fileno()), folder or tempfile.gettempdir()
    except OSError as error:
        remedy = "Set TMPDIR to a folder that can be written to." if folder is None else "Give offload= another folder."
        raise NoRoom(
            f"the step's saved tensors wait in a temporary file, and none can be made ({error}). {remedy}"
        ) from error
