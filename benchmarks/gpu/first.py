"""Stage 0: what a machine that is lent for ten minutes should answer first, in the order in which it is worth the time.

0 s       90         200          320             440          480      540
│ where   │ 1 B      │ 3 B        │ 3 B, fused    │ 100 M      │ moves  │
│ time    │ at equal peak, beside torch's checkpoint on      │        │
│ goes    │ every block                                      │        │
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.gpu.busy import where_time_goes
from benchmarks.gpu.methods import TORCH
from benchmarks.gpu.moved import moves
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import Setting
from benchmarks.gpu.users import at_equal_peak

__all__ = ["rows"]

WHERE = ("llama-1b", "llama-100m")

MOVED = "llama-1b"


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the rows, the first answers first."""
    found = [_job(f"where time goes: {name}", partial(where_time_goes, name, setting)) for name in WHERE]
    at_peak = f"at the peak of {TORCH}"
    equal = partial(at_equal_peak, other=TORCH, setting=setting)
    return [
        *found,
        _job(f"llama-1b {at_peak}", partial(equal, "llama-1b")),
        _job(f"llama-3b, foreach AdamW, {at_peak}", partial(equal, "llama-3b")),
        _job(f"llama-3b, fused AdamW, {at_peak}", partial(equal, "llama-3b", fused=True)),
        _job(f"llama-100m {at_peak}", partial(equal, "llama-100m")),
        _job(f"moves: {MOVED}", partial(moves, MOVED, setting, folder)),
    ]


def _job(name: str, run: Callable[[], Iterator[Figures]]) -> Job:
    """Return a row with a process of its own: a model's memory is gone before the next one comes."""
    return Job(name=name, run=run, process=name)
