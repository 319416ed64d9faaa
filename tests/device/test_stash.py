"""Tensors of a device wait in pinned memory that is little more than their own bytes, and none of it is left."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.doors import Spill, SpilledTensor, Token, checksums, open_stash, torch_private
from tests.stash.saved import saved_by_layers, unique_bytes

MIB = 1 << 20
CUDA = torch.device("cuda")


def pinned_bytes(figure: str = "current") -> int:
    found: int = torch.cuda.host_memory_stats()[f"allocated_bytes.{figure}"]
    return found


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    gc.collect()
    torch_private.empty_pinned_cache()
    yield
    gc.collect()
    torch_private.empty_pinned_cache()


def test_what_torch_keeps_pinned_can_be_given_back() -> None:
    before = pinned_bytes()
    torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    assert pinned_bytes() - before == 4 * MIB
    torch_private.empty_pinned_cache()
    assert pinned_bytes() == before


def test_pinned_memory_is_a_tenth_more_than_what_waits_at_most_and_none_is_left() -> None:
    before, saved = pinned_bytes(), saved_by_layers("cuda", layers=24, tokens=512)
    spill = Spill(open_stash(CUDA), CUDA, ())
    held = [spill.take(tensor) for tensor in saved]
    waiting_bytes = unique_bytes(saved)
    assert 40 * MIB < waiting_bytes <= pinned_bytes() - before <= 1.1 * waiting_bytes
    for tensor, each in zip(saved, held, strict=True):
        assert isinstance(each, SpilledTensor)
        back = each.restore()
        assert back.device == tensor.device
        assert back.stride() == tensor.stride()
        assert torch.equal(back, tensor)
    del spill, held, each
    gc.collect()
    assert pinned_bytes() == before


@pytest.mark.parametrize("part", [0, 1, 2])
def test_no_memory_of_the_device_is_taken_for_a_copy(part: int) -> None:
    tensor = torch.randn(64, 512, 3 * 96, device=CUDA).chunk(3, -1)[part]
    back: Tensor = torch.empty_strided(tensor.shape, tensor.stride(), device=CUDA)
    stash = open_stash(CUDA)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    token: Token = stash.put(tensor)
    stash.get(token, back)
    assert torch.cuda.max_memory_allocated() == before
    assert token.stored_bytes == tensor.nbytes
    assert torch.equal(back, tensor)


def test_a_write_between_two_saves_is_seen() -> None:
    tensor = torch.zeros(3 * MIB, device=CUDA)
    stash = open_stash(CUDA)
    tokens = [stash.put(tensor), stash.put(tensor.view(3, -1))]
    tensor.data[-1] = 1
    tokens.append(stash.put(tensor.view(3, -1)))
    assert tokens[0] == tokens[1] != tokens[2]
    back = torch.empty_like(tensor)
    for token, total in zip(tokens, (0, 0, 1), strict=True):
        stash.get(token, back)
        assert back.sum() == total


def test_a_row_on_a_device_has_one_number_that_tells_it() -> None:
    """Ranks compare it (`offload="shard"`)."""
    row = (torch.arange(2500) % 251).to(torch.uint8).to(CUDA)
    swapped, flipped = torch.cat([row[1000:2000], row[:1000], row[2000:]]), row.clone()
    flipped[1234] ^= 1
    numbers = [checksums.number_of(each) for each in (row, row.clone(), swapped, flipped, row[:2499])]
    assert all(each.device == row.device and each.shape == (1,) for each in numbers)
    assert numbers[0].item() == numbers[1].item()
    assert len({each.item() for each in numbers}) == 4
