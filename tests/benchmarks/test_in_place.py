"""The reader of the allocator that stands outside of torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from benchmarks.in_place.allocator import environment_with_reader

BOTH = """
import json, torch, autockpt
from benchmarks.in_place.allocator import Allocator

allocator = Allocator()
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.Flatten())
batch = torch.randn(4, 3, 32, 32)

def step():
    model(batch).square().mean().backward()
    model.zero_grad()

step()
allocator.begin()
start = allocator.level_bytes()
step()
print(json.dumps([allocator.peak_bytes() - start, autockpt.measure(step).step_bytes]))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_it_reads_what_the_referee_reads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOTH], env=environment_with_reader(), capture_output=True, text=True, check=True
    )
    read, measured = json.loads(done.stdout)
    assert read == measured > 0
