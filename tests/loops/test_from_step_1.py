"""The same loops, with every step measured from the first one on: by a reader of the allocator outside of torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.in_place.allocator import environment_with_reader

HERE = Path(__file__).parent

KEPT = "not from_step_1 and (nothing_special or made_after or two_graphs)"  # without it, this test begins itself
"""A few of them every day; the sweep takes all."""

ALL = "not from_step_1 and not second_thread"  # the reader would see that thread too

EVERY_ROW = "sweep or not sweep"

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("which", [KEPT, pytest.param(ALL, marks=pytest.mark.sweep)])
def test_every_step_from_the_first_one_on_is_within_the_budget(which: str) -> None:
    done = subprocess.run(
        [*PYTEST, HERE, "-k", which, *(("-m", EVERY_ROW) if which == ALL else ())],
        env=environment_with_reader(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
