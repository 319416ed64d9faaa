"""The rows of a stage: each is written down as it comes, and a failing one does not take the others with it.

A row is a dictionary of `name`, `outcome`, `predicted` and `measured`. What is predicted comes first, and cannot be
added to once something is measured.
"""

from __future__ import annotations

import datetime
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "DONE",
    "ERROR",
    "MEMORY",
    "PLANNED",
    "RUNNING",
    "TIME",
    "Figures",
    "Job",
    "NotHere",
    "Sheet",
    "died",
    "now",
    "out_of_memory",
    "run_jobs",
]

PLANNED, RUNNING, DONE = "planned", "running", "done"
ERROR, MEMORY, MISSING, TIME = "error", "out of memory", "not here", "not run: out of time"

Figures = tuple[Literal["predicted", "measured"], dict[str, Any]]


class NotHere(Exception):
    """What the row is about is not installed, or does not apply; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What makes one row.

    Attributes:
        name: the row's name, the only one of its stage.
        run: yields figures; each is written before the next is made.
        process: rows that follow one another and name the same one run in one process.
        environment: variables that this process begins with.
        vital: where it is not done, no other row can be, and none is begun.
    """

    name: str
    run: Callable[[], Iterator[Figures]]
    process: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    vital: bool = False


class Sheet:
    """The JSON of a stage; every change is on the disk when the method that made it returns.

    Args:
        path: the file.
        document: what it holds.
    """

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.document = document
        document.setdefault("rows", [])

    @classmethod
    def load(cls, path: Path) -> Sheet:
        """Read what another process wrote."""
        return cls(path, json.loads(path.read_text()))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows, in order."""
        rows: list[dict[str, Any]] = self.document["rows"]
        return rows

    def save(self) -> None:
        """Write the file, whole or not at all."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.document, indent=1) + "\n")
        partial.replace(self.path)

    def plan(self, jobs: Sequence[Job]) -> None:
        """Add rows that are still to run, unless they are there."""
        known = {row["name"] for row in self.rows}
        for job in jobs:
            if job.name not in known:
                row: dict[str, Any] = {"name": job.name, "outcome": PLANNED}
                self.rows.append(row | ({"environment": dict(job.environment)} if job.environment else {}))
        self.save()

    def add(self, row: dict[str, Any], kind: str, figures: dict[str, Any]) -> None:
        """Write figures into a row.

        Raises:
            ValueError: a prediction comes after a measurement.
        """
        if kind == "predicted" and "measured" in row:
            raise ValueError(f"{row['name']}: {', '.join(figures)} cannot be predicted after something was measured")
        row.setdefault(f"{kind}_at", now())
        row.setdefault(kind, {}).update(figures)
        self.save()

    def end(self, row: dict[str, Any], outcome: str, error: str = "") -> None:
        """Write how a row ended."""
        row["outcome"] = outcome
        if error:
            row["error"] = error
        self.save()


def run_jobs(
    jobs: Sequence[Job],
    sheet: Sheet,
    *,
    until: float,
    clean: Callable[[], None],
    log: Callable[[str], None],
    footprint: Callable[[], dict[str, Any]] | None = None,
    alone: bool = False,
) -> None:
    """Run the jobs whose rows are still planned, one after the other.

    Args:
        jobs: the jobs, in order.
        sheet: where their rows are written.
        until: time of the monotonic clock after which no row begins.
        clean: run after each row: lets go of what it held. What it raises ends the stage's process.
        log: is told how rows begin and end, and what they raise.
        footprint: says what a row leaves behind, before `clean`; kept in the row.
        alone: end before the first row that wants another process than the first one that is run.
    """
    sheet.plan(jobs)
    rows = {row["name"]: row for row in sheet.rows}
    left = [job for job in jobs if rows[job.name]["outcome"] == PLANNED]
    for job in left:
        row = rows[job.name]
        if alone and job.process != left[0].process:
            return
        if time.monotonic() > until:
            sheet.end(row, TIME)
            log(f"{job.name}: {TIME}")
            continue
        log(f"{job.name} …")
        began = time.monotonic()
        sheet.end(row, RUNNING)
        outcome, said = _run(job, sheet, row, log)
        row["seconds"] = round(time.monotonic() - began, 3)
        sheet.end(row, outcome, said)
        log(f"{job.name}: {outcome}, {row['seconds']:.1f} s{': ' + said if said else ''}")
        if footprint is not None:
            row["footprint"] = footprint()
            sheet.save()
        if job.vital and outcome != DONE:
            for other in sheet.rows:
                if other["outcome"] == PLANNED:
                    sheet.end(other, f"not run: {job.name} was not done")
            return
        clean()


def _run(job: Job, sheet: Sheet, row: dict[str, Any], log: Callable[[str], None]) -> tuple[str, str]:
    """Run one job; return how it ended, and with which words."""
    try:
        for kind, figures in job.run():
            sheet.add(row, kind, figures)
    except Exception as error:
        log("".join(traceback.format_exception(error)))
        outcome = MISSING if isinstance(error, NotHere) else MEMORY if out_of_memory(error) else ERROR
        said = " ".join(str(error).split())[:400]
        traceback.clear_frames(error.__traceback__)  # they hold the row's tensors
        return outcome, f"{type(error).__name__}: {said}"
    return DONE, ""


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that memory ran out, on a device or on the host."""
    words = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed")
    while error is not None:
        told = str(error).lower()
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and any(each in told for each in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def died(sheet: Sheet, why: str) -> bool:
    """Write into the row that was running that its process ended; return whether there was one."""
    running = [row for row in sheet.rows if row["outcome"] == RUNNING]
    for row in running:
        sheet.end(row, ERROR, why)
    return bool(running)


def now() -> str:
    """Date and time, ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
