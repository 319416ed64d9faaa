"""A stage in a process of its own: one that dies goes on behind the row that killed it, one that hangs is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.rows import PLANNED, TIME, Sheet, died

__all__ = ["supervise"]


def supervise(command: Sequence[str], path: Path, *, limit_seconds: float) -> None:
    """Run the process of a stage until no row of it is left to run.

    Args:
        command: starts it; it goes on where the rows in `path` say. Its stderr becomes the log beside `path`.
        path: the stage's JSON, which is there already.
        limit_seconds: after which it is killed, and what is left was not run.
    """
    until = time.monotonic() + limit_seconds
    log = path.with_suffix(".log")
    while True:
        before = _left(Sheet.load(path))
        why = _run(command, log, max(until - time.monotonic(), 0.1))
        sheet = Sheet.load(path)
        stuck = not died(sheet, why or "its process ended") and _left(sheet) == before
        if not why and not _left(sheet):
            return
        if stuck and not sheet.rows:  # it died before it knew its rows
            sheet.rows.append({"name": "stage", "outcome": "error", "error": f"{why}; {_last_line(log)}"})
        if stuck or time.monotonic() >= until or not _left(sheet):
            break
    for row in sheet.rows:
        if row["outcome"] == PLANNED:
            row["outcome"] = TIME if time.monotonic() >= until else f"not run: {why or 'its process ended'}"
    sheet.save()


def _left(sheet: Sheet) -> int | None:
    """How many rows are still to run; None before any is known."""
    return sum(row["outcome"] == PLANNED for row in sheet.rows) if sheet.rows else None


def _run(command: Sequence[str], log: Path, seconds: float) -> str:
    """Run a process, and all that it starts, for at most so long; return why it ended, empty where it was done."""
    with log.open("a") as stderr, subprocess.Popen(command, stderr=stderr, start_new_session=True) as process:
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "killed: out of time"
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if status < 0:
        return f"its process died of {signal.Signals(-status).name}"
    return f"its process ended with {status}" if status else ""


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else "it said nothing"
