"""The allocator: how requests are rounded, split, joined, given back and refused, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.fake_cuda.device import Options, set_options, take_peak

KIB, MIB = 1 << 10, 1 << 20


def block(size_bytes: int) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def figure(name: str) -> int:
    found: int = torch.cuda.memory_stats()[name]
    return found


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """A stream of its own, so that no block of an earlier test is near, and a cache that is empty."""
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.empty_cache()
        yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("asked", "counted"), [(1, 512), (512, 512), (513, 1024), (3 * MIB + 1, 3 * MIB + 512)])
def test_requests_are_rounded_to_512_bytes(asked: int, counted: int) -> None:
    allocated, requested = torch.cuda.memory_allocated(), figure("requested_bytes.all.current")
    kept = block(asked)
    assert torch.cuda.memory_allocated() - allocated == counted
    assert figure("requested_bytes.all.current") - requested == asked
    del kept
    assert torch.cuda.memory_allocated() == allocated


@pytest.mark.parametrize(
    ("asked", "segment", "pool"),
    [
        (1 * MIB, 2 * MIB, "small"),
        (1 * MIB + 1, 20 * MIB, "large"),
        (9 * MIB, 20 * MIB, "large"),
        (10 * MIB, 10 * MIB, "large"),
        (11 * MIB, 12 * MIB, "large"),
    ],
)
def test_segments_have_the_size_that_torch_gives_them(asked: int, segment: int, pool: str) -> None:
    reserved, of_pool = torch.cuda.memory_reserved(), figure(f"reserved_bytes.{pool}_pool.current")
    kept = block(asked)
    assert torch.cuda.memory_reserved() - reserved == segment
    assert figure(f"reserved_bytes.{pool}_pool.current") - of_pool == segment
    del kept
    assert torch.cuda.memory_reserved() - reserved == segment
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_what_is_left_of_a_large_block_is_split_off_beyond_one_mib_and_else_counts() -> None:
    before = torch.cuda.memory_allocated()
    kept = block(19 * MIB + 512)
    del kept
    kept = block(19 * MIB)  # 20 MiB are there, and 1 MiB of them is not more than 1 MiB
    assert torch.cuda.memory_allocated() - before == 20 * MIB
    del kept
    kept = block(18 * MIB)
    assert torch.cuda.memory_allocated() - before == 18 * MIB == kept.nbytes


def test_a_split_segment_stays_until_all_of_it_is_free_and_its_rest_is_inactive() -> None:
    reserved, inactive = torch.cuda.memory_reserved(), figure("inactive_split_bytes.all.current")
    first, second = block(2 * MIB), block(2 * MIB)
    assert figure("inactive_split_bytes.all.current") - inactive == 16 * MIB
    del first
    assert figure("inactive_split_bytes.all.current") - inactive == 18 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - reserved == 20 * MIB
    del second
    assert figure("inactive_split_bytes.all.current") == inactive
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_freed_neighbours_become_one_block() -> None:
    parts = [block(5 * MIB) for _ in range(4)]
    reserved = torch.cuda.memory_reserved()
    for number in (1, 3, 0, 2):
        parts[number] = block(0)
    kept = block(19 * MIB)
    assert torch.cuda.memory_reserved() == reserved
    del kept


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    large, barrier, small = block(4 * MIB), block(2 * MIB), block(3 * MIB)
    fence = block(2 * MIB)
    place = small.data_ptr()
    del large, small
    kept = block(3 * MIB)
    assert kept.data_ptr() == place
    del barrier, fence


def test_beyond_the_limit_the_cache_is_given_back_and_then_the_request_refused() -> None:
    start = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((start + 64 * MIB) / torch.cuda.get_device_properties().total_memory)
    retries, failures = figure("num_alloc_retries"), figure("num_ooms")
    kept = block(40 * MIB)
    del kept
    kept = block(50 * MIB)  # only in place of the 40
    assert (figure("num_alloc_retries") - retries, figure("num_ooms") - failures) == (1, 0)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        block(20 * MIB)
    assert (figure("num_alloc_retries") - retries, figure("num_ooms") - failures) == (2, 1)
    del kept


def test_peaks_are_those_since_they_were_reset_and_the_witness_has_its_own() -> None:
    take_peak()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = block(6 * MIB)
    del kept
    assert torch.cuda.max_memory_allocated() == before + 6 * MIB
    assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert take_peak() == before + 6 * MIB
    assert take_peak() == before


def test_free_memory_is_what_is_not_reserved() -> None:
    kept = block(4 * MIB)
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_reserved() >= 20 * MIB
    del kept


def test_a_smaller_mib_makes_smaller_segments() -> None:
    set_options(Options(mib_bytes=16 * KIB))
    reserved = torch.cuda.memory_reserved()
    kept = block(15 * KIB), block(17 * KIB)
    assert torch.cuda.memory_reserved() - reserved == 32 * KIB + 320 * KIB
    del kept


def test_uninitialised_memory_is_other_junk_each_time() -> None:
    found = [block(4096).clone().cpu() for _ in range(3)]
    assert len({bytes(each.tolist()) for each in found}) == 3


@pytest.mark.usefixtures("deterministic")
def test_deterministic_algorithms_fill_what_is_empty() -> None:
    assert torch.empty(7, device="cuda").isnan().all()
    assert (torch.empty(2, dtype=torch.int64, device="cuda") == torch.iinfo(torch.int64).max).all()


@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_the_profiler_hears_of_blocks_from_torchs_allocator_alone(backend: str) -> None:
    set_options(Options(backend=backend))  # type: ignore[arg-type]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = block(3000)
    found = [each.nbytes() for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    assert torch.cuda.get_allocator_backend() == backend
    assert (3072 in found) == (backend == "native")
    del kept
