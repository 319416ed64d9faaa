"""The examples run as their first lines say, on two ranks over gloo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(each.stem for each in EXAMPLES.glob("*.py") if each.stem != "common")

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

NOISY = {"fsdp2", "tensor_parallel"}
"""Whose collectives on a CPU let go of memory at moments that no instrument sees."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each == "ddp" else pytest.mark.sweep) for each in NAMES]
)
def test_an_example_trains_within_its_budget(name: str) -> None:
    file = EXAMPLES / f"{name}.py"
    assert f"torchrun --nproc-per-node 2 examples/{name}.py" in file.read_text()
    torchrun = (sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    threads = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    told = subprocess.run([*torchrun, file], capture_output=True, text=True, env=threads, cwd=EXAMPLES.parent)
    assert told.returncode == 0, told.stderr[-4000:]
    rows = [re.findall(r"[\d.]+(?= MB)|\d+(?=  the same)", line) for line in told.stdout.splitlines() if " MB" in line]
    assert len(rows) == 2, told.stdout
    for budget, plain, measured, segments in rows:
        assert float(budget) < float(plain) and int(segments)
        assert name in NOISY or float(measured) <= float(budget)
