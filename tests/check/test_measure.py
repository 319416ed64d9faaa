"""The referee: what a step's memory really was."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import autockpt

MEGABYTE = 2**20


def floats(megabytes: int) -> torch.Tensor:
    return torch.zeros(megabytes * MEGABYTE // 4)


def test_what_is_older_than_the_step_and_freed_in_it_is_not_counted_on() -> None:
    old = {"tensor": floats(100)}

    def step() -> None:
        old.clear()
        floats(100)

    found = autockpt.measure(step, device="cpu")
    assert (found.peak_bytes - found.start_bytes, found.start_bytes - found.end_bytes) == (0, 100 * MEGABYTE)


def test_a_storage_goes_with_its_last_view_or_graph() -> None:
    weight, old = torch.ones(10, requires_grad=True), {"whole": floats(40)}
    old["view"] = old["whole"][:10]
    loss = (old["view"] * weight).sum()

    def step() -> None:
        del old["whole"]
        first = floats(10)
        del old["view"], first
        loss.backward()
        floats(10)

    found = autockpt.measure(step, device="cpu")
    assert found.peak_bytes - found.start_bytes == 10 * MEGABYTE
    assert found.start_bytes - found.end_bytes == 40 * MEGABYTE - weight.nbytes  # whose gradient came


def test_what_goes_in_another_thread_takes_nothing_from_others() -> None:
    old = [floats(8)]

    def step() -> None:
        thread = threading.Thread(target=old.clear)
        thread.start()
        thread.join()
        floats(16)

    found = autockpt.measure(step, device="cpu")
    assert 8 * MEGABYTE <= found.peak_bytes - found.start_bytes <= 16 * MEGABYTE


RESIDENT = """
import torch, autockpt
torch.set_num_threads(1)
block = lambda: torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
model, batch = torch.nn.Sequential(*(block() for _ in range(6))), torch.randn(2048, 256)
def step():
    model(batch).square().mean().backward()
    model.zero_grad()
step()
found = autockpt.measure(step)
print(found.step_bytes, found.resident_bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_resident_memory_agrees_where_the_allocator_gives_back_what_is_freed() -> None:
    """In a process of its own: others' pages would be used again, or theirs given back."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "OMP_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", RESIDENT], env=environment, capture_output=True, text=True, check=True)
    if told.stdout.split()[1] == "None":
        pytest.skip("this kernel does not let a process reset its highest resident memory")
    allocated_bytes, resident_bytes = map(int, told.stdout.split())
    assert resident_bytes == pytest.approx(allocated_bytes, rel=0.1)


def test_a_measurement_leaves_the_model_and_torch_as_they_were() -> None:
    model, batch = nn.Linear(8, 8), torch.randn(4, 8)
    for _ in range(2):
        autockpt.measure(lambda: model(batch).sum().backward(), device="cpu")
    with torch.profiler.profile() as profiler:
        torch.ones(3).add_(1)
    assert len(list(profiler.events() or ())) > 0


def test_a_view_that_cannot_be_asked_for_its_gradient_is_no_error() -> None:
    """One of several that `split` returned, after their base was changed in place."""
    flat = nn.Parameter(floats(1))
    views = flat.split(flat.numel() // 2)
    with torch.no_grad():
        flat.mul_(2)
    with pytest.raises(RuntimeError, match="is a view and its base"):
        _ = views[1].is_leaf
    assert autockpt.measure(lambda: floats(1), device="cpu").step_bytes >= MEGABYTE


def test_what_print_shows_of_a_measurement_is_a_page() -> None:
    found = autockpt.measure(lambda: floats(10), device="cpu")
    rows = {line.split("  ")[0]: line for line in str(found).splitlines()}
    assert "of it the step" in rows and "10.00 MiB" in rows["of it the step"]
    assert "Measurement(" not in str(found) and "Measurement(" in repr(found)
