"""The stages: what each is called, how long it may take, and where its rows are."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it comes with torch
    from benchmarks.gpu.rows import Job
    from benchmarks.gpu.steps import Setting

__all__ = ["STAGES", "Stage", "jobs_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage.

    Attributes:
        title: what it shows.
        modules: whose functions `rows` make its rows, in this order.
        limit_seconds: after which its process is killed, counted from when the command began, or `make` before it.
        process_seconds: after which one of its processes is killed, so that one that hangs leaves time to the others.
        begin_share: share of its time after which no row of it begins: the one that runs has the rest.
    """

    title: str
    modules: tuple[str, ...]
    limit_seconds: int
    process_seconds: int
    begin_share: float = 0.85


STAGES = {
    0: Stage(
        title="The first ten minutes", modules=("first",), limit_seconds=540, process_seconds=150, begin_share=0.9
    ),
    1: Stage(title="The main road", modules=("events", "road", "smoke"), limit_seconds=235, process_seconds=100),
    2: Stage(title="What users ask", modules=("users",), limit_seconds=480, process_seconds=240),
    3: Stage(
        title="Kernels, streams, loops, tests", modules=("kernels", "loops", "busy", "gpu_tests"), limit_seconds=480,
        process_seconds=200,
    ),
    4: Stage(title="Hard caps", modules=("caps",), limit_seconds=520, process_seconds=150),
    5: Stage(title="The frontier", modules=("frontier",), limit_seconds=520, process_seconds=240),
    6: Stage(
        title="Recorded beside fake, and published", modules=("profiles", "published"), limit_seconds=520,
        process_seconds=150,
    ),
    7: Stage(title="Tensors that wait on the host", modules=("moved",), limit_seconds=480, process_seconds=240),
}  # fmt: skip
"""By number, in the order in which they are worth their time. A call on a lent machine is killed after ten minutes.

The first has rows of others, for a machine that is lent for one call. It runs only where it is named.
"""


def jobs_of(stage: int, setting: Setting, folder: Path) -> list[Job]:
    """Return the rows of a stage, which may put files into `folder`. Imports torch."""
    jobs: list[Job] = []
    for module in STAGES[stage].modules:
        jobs += importlib.import_module(f"benchmarks.gpu.{module}").rows(setting, folder)
    return jobs
