"""The six stages: what each is called, how long it may take, and which rows it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they come with torch
    from benchmarks.gpu.rows import Job
    from benchmarks.gpu.steps import Setting

__all__ = ["STAGES", "Stage", "jobs_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage.

    Attributes:
        title: what it shows.
        limit_seconds: after which its process is killed.
    """

    title: str
    limit_seconds: int

    @property
    def begin_seconds(self) -> float:
        """After which no row of it begins: the one that runs has the rest."""
        return 0.85 * self.limit_seconds


STAGES = {
    1: Stage(title="Smoke", limit_seconds=300),
    2: Stage(title="The tests marked gpu", limit_seconds=360),
    3: Stage(title="Hard caps", limit_seconds=540),
    4: Stage(title="Profiles, recorded beside fake", limit_seconds=540),
    5: Stage(title="The frontier", limit_seconds=540),
    6: Stage(title="Published figures", limit_seconds=540),
}
"""By number. The first three take 20 minutes together at most, and any of them nine."""


def jobs_of(stage: int, setting: Setting, folder: Path) -> Sequence[Job]:
    """Return the rows of a stage, which may put files into `folder`. Imports torch."""
    if stage == 1:
        from benchmarks.gpu.smoke import smoke

        return smoke(setting)
    if stage == 2:
        from benchmarks.gpu.gpu_tests import gpu_tests

        return gpu_tests(setting)
    if stage == 3:
        from benchmarks.gpu.caps import caps

        return caps(setting, folder)
    if stage == 4:
        from benchmarks.gpu.profiles import profiles

        return profiles(setting)
    if stage == 5:
        from benchmarks.gpu.frontier import frontier

        return frontier(setting, folder)
    from benchmarks.gpu.published import published

    return published(setting)
