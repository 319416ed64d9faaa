"""What waits in memory of the host takes little more than its own bytes, and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.doors import (
    Arenas,
    Cursor,
    HostMemory,
    HostRoom,
    HostStash,
    NoRoom,
    Spill,
    SpilledTensor,
    Token,
    host_room,
    pageable,
    stash_arenas,
    stash_memory,
)
from tests.stash.saved import saved_by_layers, unique_bytes

CPU = torch.device("cpu")
MIB = 1 << 20


class Memory:
    """Hands out memory, and knows what is still there."""

    def __init__(self) -> None:
        self.rows: list[weakref.ref[Tensor]] = []
        self.taken_bytes: list[int] = []
        self.given_back = 0

    def take(self, size_bytes: int) -> Tensor:
        row = pageable(size_bytes)
        self.rows.append(weakref.ref(row))
        self.taken_bytes.append(size_bytes)
        return row

    def give_back(self) -> None:
        assert not any(row() is not None for row in self.rows), "torch's cache would keep what is still held"
        self.given_back += 1


def take_all(stash: HostStash, saved: list[Tensor]) -> list[SpilledTensor]:
    spill = Spill(stash, CPU, ())
    held = [spill.take(tensor) for tensor in saved]
    assert all(isinstance(each, SpilledTensor) for each in held)
    return held  # type: ignore[return-value]


def test_arenas_take_at_most_a_tenth_more_than_the_bytes_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stash_arenas, "SMALLEST_ARENA_BYTES", 1 << 14)
    memory, saved = Memory(), saved_by_layers("cpu", layers=4, tokens=64, width=48)
    stash = HostStash(memory.take, memory.give_back)
    held = take_all(stash, saved)
    taken_bytes = sum(memory.taken_bytes) - (MIB if MIB in memory.taken_bytes else 0)  # the buffer of a device
    assert 20 * (1 << 14) < unique_bytes(saved) <= taken_bytes <= 1.1 * unique_bytes(saved)
    assert all(bytes_ & (bytes_ - 1) == 0 for bytes_ in memory.taken_bytes), "no block is rounded up"
    for tensor, each in zip(saved, held, strict=True):
        back = each.restore()
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride()


def test_nothing_is_left_after_the_last_holder() -> None:
    memory = Memory()
    held = take_all(HostStash(memory.take, memory.give_back), saved_by_layers("cpu", layers=1))
    while len(held) > 1:
        held.pop()
    assert memory.given_back == 0
    assert any(row() is not None for row in memory.rows)
    held.clear()
    gc.collect()
    assert memory.given_back == 1
    assert not any(row() is not None for row in memory.rows)


@given(st.lists(st.integers(0, 5 * MIB), min_size=1, max_size=12), st.data())
def test_what_is_freed_is_used_again(sizes: list[int], data: st.DataObject) -> None:
    memory = Memory()
    stash = HostStash(memory.take, memory.give_back)
    waiting: list[tuple[Token, Tensor]] = []
    for number, size in enumerate(sizes):
        tensor = torch.full((size,), number, dtype=torch.uint8)
        waiting.append((stash.put(tensor), tensor))
        if data.draw(st.booleans()):
            stash.free(waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))[0])
    for token, tensor in waiting:
        back = torch.empty_like(tensor)
        stash.get(token, back)
        assert torch.equal(back, tensor)
        stash.free(token)
    before = len(memory.taken_bytes)
    stash.put(torch.zeros(sum(memory.taken_bytes), dtype=torch.uint8))
    assert len(memory.taken_bytes) == before, "all that was freed is one space again"


def test_the_same_bytes_wait_once_and_until_the_last_of_them_is_freed() -> None:
    memory, tensor = Memory(), torch.randn(3 * MIB)
    stash = HostStash(memory.take, memory.give_back)
    tokens = [stash.put(view) for view in (tensor, tensor.view(3, -1), tensor.view(3, -1).t())]
    assert len(set(tokens)) == 1
    stash.free(tokens.pop())
    stash.free(tokens.pop())
    stash.put(torch.zeros(3 * MIB))
    stash.get(tokens[0], back := torch.empty_like(tensor))
    assert torch.equal(back, tensor)


def test_a_write_that_no_version_tells_is_seen() -> None:
    memory, tensor = Memory(), torch.zeros(3 * MIB)
    stash = HostStash(memory.take, memory.give_back)
    tokens = [stash.put(tensor)]
    for place in (0, 2 * MIB, -1):
        tensor.data[place] += 1
        tokens.append(stash.put(tensor.view(3, -1)))
    assert len(set(tokens)) == 4
    for number in range(4):  # in the order of their puts, the later ones are still found
        stash.get(tokens[number], back := torch.empty_like(tensor))
        assert back.sum() == number
        stash.free(tokens[number])
    assert stash.put(torch.ones(1)) not in tokens[1:]


def test_garbage_that_is_collected_in_the_middle_of_a_put_is_freed() -> None:
    """A collector runs in the thread that holds the stash's lock."""
    memory = Memory()
    stash = HostStash(lambda size_bytes: (gc.collect(), memory.take(size_bytes))[1], memory.give_back)
    for _ in range(4):
        cycle: list[object] = []
        cycle += [cycle, SpilledTensor(stash, torch.randn(MIB))]
        del cycle
        SpilledTensor(stash, torch.randn(MIB // 2))
    assert sum(memory.taken_bytes) < 12 * MIB


@pytest.mark.parametrize("place", [0, 3, 1000, MIB - 1, MIB, 3 * MIB])
def test_a_tensor_may_lie_across_arenas(place: int) -> None:
    space = Arenas(pageable)
    for size_bytes in (MIB, 2 * MIB, 5 * MIB):
        space.grow(size_bytes)
    row = torch.randint(255, (2 * MIB,), dtype=torch.uint8)
    Cursor(space, place).write(row)
    Cursor(space, place).read(back := torch.empty_like(row))
    assert torch.equal(back, row)
    assert Cursor(space, place).matches(row)
    row[-1] ^= 1
    assert not Cursor(space, place).matches(row)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_a_span_of_a_space_is_given_in_order_whatever_arenas_it_crosses(grows: list[int], data: st.DataObject) -> None:
    space, taken = Arenas(pageable), 0
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(stash_arenas, "SMALLEST_ARENA_BYTES", 4)
        for more in grows:
            taken += more
            space.grow(taken)
    assert space.size_bytes >= taken
    whole = torch.randint(255, (space.size_bytes,), dtype=torch.uint8)
    Cursor(space, 0).write(whole)
    place = data.draw(st.integers(0, space.size_bytes))
    size = data.draw(st.integers(0, space.size_bytes - place))
    rows = [*space.rows(place, size)]
    assert torch.equal(torch.cat([torch.empty(0, dtype=torch.uint8), *rows]), whole[place : place + size])
    assert all(len(row) for row in rows)
    cursor = Cursor(space, place)
    memory = cursor.ahead(size)
    assert (memory is None) == (len(rows) != 1)
    assert memory is None or (memory.data_ptr() == rows[0].data_ptr() and len(memory) == size)
    begin = place if memory is None else place + size  # where the cursor is
    cursor.read(rest := torch.empty(space.size_bytes - begin, dtype=torch.uint8))
    assert torch.equal(rest, whole[begin:])


def test_a_slice_that_crosses_arenas_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stash_arenas, "SMALLEST_ARENA_BYTES", 1 << 8)
    memory = Memory()
    stash = HostStash(memory.take, memory.give_back)
    saved = [part.transpose(0, 1) for part in torch.randn(5, 77, 3 * 8).chunk(3, -1)]
    tokens = [stash.put(tensor) for tensor in saved]
    for token, tensor in zip(tokens, saved, strict=True):
        assert token.stored_bytes == tensor.nbytes
        stash.get(token, back := torch.empty_strided(tensor.shape, tensor.stride()))
        assert torch.equal(back, tensor)


def test_what_could_not_be_copied_takes_no_room() -> None:
    memory = Memory()
    stash = HostStash(memory.take, memory.give_back)
    with pytest.raises(NotImplementedError):
        stash.put(torch.empty(MIB, device="meta", dtype=torch.uint8))
    stash.put(torch.zeros(MIB, dtype=torch.uint8))
    assert sum(memory.taken_bytes) == MIB


def host(available_bytes: list[int], pinned: Callable[[int], Tensor] = pageable) -> HostMemory:
    """Memory of a host of 160 MiB, of which so much is available in turn."""
    return HostMemory(lambda: HostRoom(total_bytes=160 * MIB, available_bytes=available_bytes.pop(0)), pinned)


def test_memory_is_pinned_as_long_as_an_eighth_is_left_then_pageable_then_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pinned: list[int] = []

    def pin(size_bytes: int) -> Tensor:
        pinned.append(size_bytes)
        return pageable(size_bytes)

    memory = host([28 * MIB, 27 * MIB, 18 * MIB, 17 * MIB], pin)
    with caplog.at_level("INFO", "autockpt"):
        for _ in range(3):
            memory.take(8 * MIB)
    assert pinned == [8 * MIB]
    (line,) = caplog.messages
    assert "have 8,388,608 bytes of pinned memory" in line
    assert "28,311,552 bytes of 167,772,160 are available, and 20,971,520 are for others" in line
    with pytest.raises(NoRoom, match=r"took 25,165,824 bytes and not 8,388,608 more: 17,825,792 .* smaller batch"):
        memory.take(8 * MIB)


def test_where_nothing_can_be_pinned_memory_is_pageable(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(size_bytes: int) -> Tensor:
        raise RuntimeError("no driver\nat some line")

    memory = HostMemory(lambda: None, refuse)
    with caplog.at_level("INFO", "autockpt"):
        assert len(memory.take(8 * MIB)) == len(memory.take(8 * MIB)) == 8 * MIB
    (line,) = caplog.messages
    assert line.endswith("slower to copy: no driver")


def test_a_stash_that_was_refused_memory_still_has_what_waits() -> None:
    memory = host([160 * MIB, 0, 0])
    stash = HostStash(memory.take, lambda: None)
    tensor = torch.randn(MIB // 4)
    token = stash.put(tensor)
    with pytest.raises(NoRoom):
        stash.put(torch.randn(MIB))
    stash.get(token, back := torch.empty_like(tensor))
    assert torch.equal(back, tensor)
    stash.free(token)
    stash.put(torch.randn(MIB // 4))  # into the room of the first


def test_the_room_on_this_host_is_known() -> None:
    found = host_room()
    assert found is not None
    assert 0 < found.available_bytes <= found.total_bytes


def test_in_a_container_its_limit_counts_and_what_files_have_in_the_cache_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files that were read count as memory in use there, and the kernel takes it back before it refuses any."""
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    for name, text in (("max", "409600\n"), ("current", "307200\n"), ("stat", "anon 1\ninactive_file 51200\n")):
        (group / f"memory.{name}").write_text(text)
    monkeypatch.setattr(stash_memory, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert host_room() == HostRoom(total_bytes=409600, available_bytes=409600 - 307200 + 51200)
    (group / "memory.max").write_text("max\n")
    assert host_room() == HostRoom(total_bytes=1000 * 1024, available_bytes=900 * 1024)
