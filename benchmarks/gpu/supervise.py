"""A stage in processes of its own: one that dies goes on behind the row that killed it, one that hangs is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gpu.rows import PLANNED, TIME, Sheet, died

__all__ = ["supervise"]


def supervise(
    command: Sequence[str],
    path: Path,
    *,
    limit_seconds: float,
    process_seconds: float | None = None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Run the processes of a stage until no row of it is left to run.

    Args:
        command: starts one, in the environment that its first row asks for; it goes on where the rows in `path` say.
            Its stderr becomes the log beside `path`.
        path: the stage's JSON, which is there already.
        limit_seconds: after which it is killed, and what is left was not run.
        process_seconds: after which one process is killed, so that the next has time; None is never.
        after: called after each process.
    """
    until = time.monotonic() + limit_seconds
    log = path.with_suffix(".log")
    while True:
        sheet = Sheet.load(path)
        before, environment = _left(sheet), _environment(sheet)
        left_seconds = max(until - time.monotonic(), 0.1)
        why = _run(command, log, min(left_seconds, process_seconds or left_seconds), environment)
        sheet = Sheet.load(path)
        stuck = not died(sheet, why or "its process ended") and _left(sheet) == before
        after()
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
    after()


def _left(sheet: Sheet) -> int | None:
    """How many rows are still to run; None before any is known."""
    return sum(row["outcome"] == PLANNED for row in sheet.rows) if sheet.rows else None


def _environment(sheet: Sheet) -> dict[str, str]:
    """Return what the next row wants in the environment of its process."""
    return next((row.get("environment", {}) for row in sheet.rows if row["outcome"] == PLANNED), {})


def _run(command: Sequence[str], log: Path, seconds: float, environment: dict[str, str]) -> str:
    """Run a process, and all that it starts, for at most so long; return why it ended, empty where it was done."""
    with (
        log.open("a") as stderr,
        subprocess.Popen(command, stderr=stderr, start_new_session=True, env={**os.environ, **environment}) as process,
    ):
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
