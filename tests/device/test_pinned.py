"""Pinned memory: powers of two that stay, and a host that is full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.fake_cuda.device import Options, set_options

MIB = 1 << 20


def pinned(size_bytes: int) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


def figure(name: str) -> int:
    found: int = torch.cuda.host_memory_stats()[name]
    return found


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    torch._C._host_emptyCache()
    yield
    torch._C._host_emptyCache()


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (4096, 4096), (4097, 8192), (5 * MIB, 8 * MIB)])
def test_blocks_are_powers_of_two(asked: int, taken: int) -> None:
    active, allocated = figure("active_bytes.current"), figure("allocated_bytes.current")
    kept = pinned(asked)
    assert kept.is_pinned()
    assert figure("active_bytes.current") - active == figure("allocated_bytes.current") - allocated == taken


def test_what_is_pinned_stays_until_the_cache_is_emptied() -> None:
    allocated, calls = figure("allocated_bytes.current"), figure("num_host_alloc")
    kept = pinned(3 * MIB)
    del kept
    assert figure("allocated_bytes.current") - allocated == 4 * MIB
    kept = pinned(4 * MIB)
    assert figure("num_host_alloc") - calls == 1
    torch._C._host_emptyCache()
    assert figure("allocated_bytes.current") - allocated == 4 * MIB  # it is in use
    del kept
    torch._C._host_emptyCache()
    assert figure("allocated_bytes.current") == allocated


def test_a_larger_block_serves_no_smaller_request() -> None:
    kept = pinned(8 * MIB)
    del kept
    allocated = figure("allocated_bytes.current")
    kept = pinned(2 * MIB)
    assert figure("allocated_bytes.current") - allocated == 2 * MIB == kept.nbytes


def test_peaks_are_those_since_they_were_reset() -> None:
    torch.cuda.reset_peak_host_memory_stats()
    before = figure("active_bytes.current")
    kept = pinned(MIB)
    del kept
    assert figure("active_bytes.peak") - before == MIB
    torch.cuda.reset_peak_host_memory_stats()
    assert figure("active_bytes.peak") == before


def test_a_full_host_raises() -> None:
    set_options(Options(pinned_limit_bytes=figure("allocated_bytes.current") + 4 * MIB))
    kept = pinned(4 * MIB)
    with pytest.raises(RuntimeError, match="CUDA error: out of memory"):
        pinned(1)
    set_options(Options())
    assert pinned(1).is_pinned()
    del kept


def test_only_pinned_tensors_say_so() -> None:
    kept = pinned(100)
    assert kept[40:].is_pinned()
    assert not torch.empty(100, dtype=torch.uint8).is_pinned()
    assert torch.ones(3).pin_memory().is_pinned()
