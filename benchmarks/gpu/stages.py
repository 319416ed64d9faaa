"""The six stages: what each is called, how long it may take, and where its rows are."""

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
        module: whose function `rows` makes its rows.
        limit_seconds: after which its process is killed.
    """

    title: str
    module: str
    limit_seconds: int

    @property
    def begin_seconds(self) -> float:
        """After which no row of it begins: the one that runs has the rest."""
        return 0.85 * self.limit_seconds


STAGES = {
    1: Stage(title="Smoke", module="smoke", limit_seconds=300),
    2: Stage(title="The tests marked gpu", module="gpu_tests", limit_seconds=360),
    3: Stage(title="Hard caps", module="caps", limit_seconds=540),
    4: Stage(title="Profiles, recorded beside fake", module="profiles", limit_seconds=540),
    5: Stage(title="The frontier", module="frontier", limit_seconds=540),
    6: Stage(title="Published figures", module="published", limit_seconds=540),
}
"""By number. The first three take 20 minutes together at most, and any of them nine."""


def jobs_of(stage: int, setting: Setting, folder: Path) -> list[Job]:
    """Return the rows of a stage, which may put files into `folder`. Imports torch."""
    jobs: list[Job] = importlib.import_module(f"benchmarks.gpu.{STAGES[stage].module}").rows(setting, folder)
    return jobs
