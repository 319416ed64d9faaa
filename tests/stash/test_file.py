"""A file in which tensors wait: what is freed is used again, short reads and writes go on, errors say what to do."""

from __future__ import annotations

import errno
import os
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autockpt import ProfilingError
from tests.doors import FileStash, NoRoom, Token


def size_of(stash: FileStash) -> int:
    return os.fstat(stash._descriptor).st_size


def back(stash: FileStash, token: Token, tensor: Tensor) -> Tensor:
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    stash.get(token, new)
    return new


@given(st.lists(st.tuples(st.integers(0, 2000), st.booleans()), max_size=20), st.data())
def test_the_file_is_no_longer_than_what_waited_at_once(puts: list[tuple[int, bool]], data: st.DataObject) -> None:
    stash = FileStash()
    waiting: list[tuple[Token, Tensor]] = []
    for number, (size, frees) in enumerate(puts):
        tensor = torch.full((size,), number)
        waiting.append((stash.put(tensor), tensor))
        if frees:
            stash.free(waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))[0])
    for token, tensor in waiting:
        assert torch.equal(back(stash, token, tensor), tensor)
        stash.free(token)
    before = size_of(stash)
    stash.put(torch.zeros(before, dtype=torch.uint8))
    assert size_of(stash) == before, "all that was freed is one space again"


def test_a_step_after_the_other_needs_no_more_of_the_file() -> None:
    stash, tensors = FileStash(), [torch.randn(1000 + i) for i in range(8)]
    for _ in range(3):
        for token in [stash.put(tensor) for tensor in tensors]:
            stash.free(token)
    assert size_of(stash) == sum(tensor.nbytes for tensor in tensors)


def test_of_a_view_only_its_own_elements_are_written() -> None:
    stash, queries = FileStash(), torch.randn(64, 64, 96).chunk(3, -1)[0]
    token = stash.put(queries)
    assert size_of(stash) == queries.nbytes
    assert torch.equal(back(stash, token, queries), queries)


def test_short_reads_and_writes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:77], place))
    monkeypatch.setattr(os, "preadv", lambda file, rows, place: read(file, [row[:33] for row in rows], place))
    stash, tensors = FileStash(), [torch.randn(100), torch.randn(10, 10)[:, ::2]]
    tokens = [stash.put(tensor) for tensor in tensors]
    assert all(torch.equal(back(stash, *each), each[1]) for each in zip(tokens, tensors, strict=True))


def test_a_file_that_somebody_cuts_off_is_named() -> None:
    stash, tensor = FileStash(), torch.randn(100)
    token = stash.put(tensor)
    os.ftruncate(stash._descriptor, 300)
    with pytest.raises(ProfilingError, match=r"ends 100 bytes too early: something else has cut it off.*TMPDIR"):
        back(stash, token, tensor)


def test_a_disk_that_fills_up_is_named_and_what_was_written_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stash, tensor, write = FileStash(), torch.randn(100), os.pwrite
    token = stash.put(tensor)

    def full(file: int, data: memoryview, place: int) -> int:
        if place >= 600:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: 600 - place], place)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoRoom, match=rf"in {tempfile.gettempdir()}, which took 400 bytes and not 400 more .*TMPDIR"):
        stash.put(torch.randn(100))
    small = torch.randn(50)
    assert torch.equal(back(stash, stash.put(small), small), small), "in what the larger one was refused"
    assert torch.equal(back(stash, token, tensor), tensor)
