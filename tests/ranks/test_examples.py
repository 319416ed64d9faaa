"""The examples do as they say, on two ranks over gloo: in the tests' own processes, and under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

from .conftest import Both

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(each.stem for each in EXAMPLES.glob("*.py") if each.stem != "common")

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

SWEEP = [pytest.param(each, marks=pytest.mark.sweep) for each in NAMES]

NOISY = {"fsdp2", "tensor_parallel"}
"""Whose collectives on a CPU let go of memory at moments that no instrument sees."""


@pytest.mark.parametrize("name", ["ddp", *(each for each in SWEEP if each.values != ("ddp",))])
def test_an_example_trains_within_its_budget(both: Both, name: str) -> None:
    first, second = both("works.example", folder=str(EXAMPLES), which=name)
    assert first == second and len(first) == 2
    for budget_bytes, plain_bytes, measured_bytes, segments, same in first:
        assert same and segments
        assert budget_bytes < plain_bytes
        assert name in NOISY or measured_bytes <= budget_bytes


@pytest.mark.parametrize("name", SWEEP)
def test_an_example_runs_under_torchrun(name: str) -> None:
    file = EXAMPLES / f"{name}.py"
    assert f"torchrun --nproc-per-node 2 examples/{name}.py" in file.read_text()
    torchrun = (sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    threads = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    told = subprocess.run([*torchrun, file], capture_output=True, text=True, env=threads, cwd=EXAMPLES.parent)
    assert told.returncode == 0, told.stderr[-4000:]
    assert told.stdout.count("the same") == 2
