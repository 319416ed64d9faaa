"""Run the stages on a GPU, or at toy size without one; each writes its rows as they come, and packs them.

On a lent machine (`OUT` names the folder whose files come back) archives are put there, else beside the rows.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.archive import archive_name, pack
from benchmarks.gpu.machine import device_name, environment, refusal, unseen
from benchmarks.gpu.report import tables
from benchmarks.gpu.rows import PLANNED, RUNNING, Sheet, now
from benchmarks.gpu.stages import STAGES, jobs_of
from benchmarks.gpu.summary import summary
from benchmarks.gpu.supervise import supervise

OUT = Path("build/gpu")
PAIRS = {"full": 2, "tiny": 1}
SEARCH_SECONDS = {"full": 3.0, "tiny": 0.3}
UNUSABLE, BLIND = 2, 3
FAKE = "fake-cuda"
PATIENCE_SECONDS = {True: 90, False: 900}
"""For `doctor`: on a GPU, whose time is short, and elsewhere, where others may keep the machine busy."""

RAW = "profiler"
"""The row that writes the raw events."""


def main() -> int:
    """Run the stages that are asked for.

    Returns:
        The exit status: 2 where nothing can run, 3 where recording sees nothing, else 0, whatever rows say.
    """
    asked = _arguments()
    if asked.inside is not None:
        return inside(asked, asked.stage[0], until=asked.inside)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was found is packed whoever ends it
    if asked.device != "cuda":  # two threads that wait for one another on a busy machine take several times as long
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    found: dict[str, Any] = {}
    reason: str | None = "torch is not installed, and nothing here installs it"
    if importlib.util.find_spec("torch") is not None:
        found = environment(_python(asked.device), PATIENCE_SECONDS[asked.device == "cuda"])
        reason = refusal(_kind(asked.device), found)
    if reason is not None:
        print(f"Error: {reason}", file=sys.stderr)
        return UNUSABLE
    asked.out.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    blind = unseen(_kind(asked.device), found)
    if blind:
        print(f"Recording sees no allocations, so that only the raw events are written: {blind}", flush=True)
        asked.stage, asked.rows = [1], RAW
    for number in asked.stage or [*STAGES][1:]:
        sheet = _begin(number, asked, found)
        to = asked.archives / archive_name(number, sheet.document["device_name"])
        ended = _ended(number, asked, sheet, to)
        left_out = _close(sheet, to)
        said.append(summary(Sheet.load(sheet.path).document, to, left_out))
        if ended:
            break
        asked.since = time.time()
    print("\n" + "\n\n".join(said), flush=True)
    return BLIND if blind else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    out = os.environ.get("OUT")
    parser.add_argument("--stage", type=int, choices=STAGES, action="append", help="one of them; all but 0 without it")
    parser.add_argument("--device", choices=["cuda", FAKE, "cpu"], default="cuda", help=f"{FAKE} is that of the tests")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="of the models")
    parser.add_argument("--rows", default="*", metavar="PATTERN", help="only rows whose name matches, as 'llama*'")
    parser.add_argument("--minutes", type=float, help="for each stage, instead of what it may take")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for JSON, logs and plans; {OUT}")
    parser.add_argument(
        "--archives", type=Path, default=out and Path(out), help="folder for archives; $OUT, else --out"
    )
    parser.add_argument("--here", action="store_true", help="no processes of their own: quicker, for toy sizes")
    parser.add_argument("--since", type=float, default=time.time(), help=argparse.SUPPRESS)
    parser.add_argument("--inside", type=float, metavar="UNTIL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.archives = asked.archives or asked.out
    return asked


def _kind(device: str) -> str:
    """Return what torch calls a device."""
    return "cuda" if device == FAKE else device


def _python(device: str) -> list[str]:
    """Return what begins the command of a process: a module follows it."""
    return [sys.executable, "-m", *(["benchmarks.gpu.fake"] if device == FAKE else [])]


def _begin(number: int, asked: argparse.Namespace, found: dict[str, Any]) -> Sheet:
    """Write the JSON of a stage without rows."""
    stage = STAGES[number]
    head = {
        "stage": number,
        "title": stage.title,
        "device": _kind(asked.device),
        "device_name": device_name(_kind(asked.device), found),
        "size": asked.size,
        "date": now(),
        "began": asked.since,
        "command": " ".join(["python", "-m", "benchmarks.gpu", *map(shlex.quote, sys.argv[1:])]),
        "limit_seconds": 60 * asked.minutes if asked.minutes else stage.limit_seconds,
        "environment": found,
    }
    sheet = Sheet(asked.out / f"stage{number}.json", head)
    sheet.save()
    sheet.path.with_suffix(".log").unlink(missing_ok=True)
    print(f"stage {number}, {stage.title}, on {head['device_name']}: {sheet.path}", flush=True)
    return sheet


def _ended(number: int, asked: argparse.Namespace, sheet: Sheet, to: Path) -> bool:
    """Run the rows of a stage; return whether somebody ended it, which its rows then say."""
    try:
        _run(number, asked, sheet, to)
    except KeyboardInterrupt:
        found = Sheet.load(sheet.path)
        for row in found.rows:
            if row["outcome"] in (PLANNED, RUNNING):
                row["outcome"] = "not run: ended from outside"
        found.save()
        return True
    return False


def _run(number: int, asked: argparse.Namespace, sheet: Sheet, to: Path) -> None:
    """Run the rows of a stage, until its time is over."""
    stage, limit_seconds = STAGES[number], sheet.document["limit_seconds"]
    spent = time.time() - asked.since
    until = time.monotonic() + stage.begin_share * limit_seconds - spent
    if asked.here:
        if asked.device == FAKE:
            from benchmarks.gpu.fake import install

            install()
        inside(asked, number, until=until)
        return
    same = ["--device", _kind(asked.device), "--size", asked.size, "--out", str(asked.out), "--rows", asked.rows]
    supervise(
        [*_python(asked.device), "benchmarks.gpu", "--stage", str(number), *same, "--inside", str(until)],
        sheet.path,
        limit_seconds=limit_seconds - spent,
        process_seconds=stage.process_seconds,
        after=partial(pack, number, asked.out, to),
    )


def _close(sheet: Sheet, to: Path) -> list[str]:
    """Write the tables of a stage and pack all that it wrote; return what was left out."""
    sheet = Sheet.load(sheet.path)
    sheet.document["seconds"] = round(time.time() - sheet.document["began"], 1)
    sheet.save()
    sheet.path.with_suffix(".md").write_text(tables(sheet.document) + "\n")
    return pack(sheet.document["stage"], sheet.path.parent, to)


def inside(asked: argparse.Namespace, number: int, *, until: float) -> int:
    """Run rows of one stage that are still to run, in this process: all, or those that want the same one."""
    import torch

    from benchmarks.gpu.memory import clean, footprint
    from benchmarks.gpu.rows import run_jobs
    from benchmarks.gpu.steps import Setting

    path = asked.out / f"stage{number}.json"
    kind = _kind(asked.device)
    where = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    setting = Setting(device=where, size=asked.size, pairs=PAIRS[asked.size], search_seconds=SEARCH_SECONDS[asked.size])
    folder = asked.out / f"stage{number}"
    folder.mkdir(exist_ok=True)
    real = kind == "cuda" and torch.version.cuda is not None
    jobs = [job for job in jobs_of(number, setting, folder) if fnmatch.fnmatch(job.name, asked.rows)]
    one_dnn: Any = torch.backends.mkldnn
    before = one_dnn.enabled
    # Some virtual machines announce instructions for bfloat16 that oneDNN uses, and lack them.
    one_dnn.enabled = real
    try:
        run_jobs(
            jobs,
            Sheet.load(path),
            until=until,
            clean=partial(clean, where),
            log=_logger(path.with_suffix(".log") if asked.here else None),
            footprint=partial(footprint, where),
            alone=not asked.here,
        )
    finally:
        one_dnn.enabled = before
    return 0


def _logger(log: Path | None) -> Callable[[str], None]:
    """Return what writes to the log, stderr where it is None, and the beginnings of lines to stdout."""

    def write(line: str) -> None:
        if log is None:
            print(line, file=sys.stderr, flush=True)
        else:
            with log.open("a") as file:
                file.write(line + "\n")
        if "\n" not in line:  # tracebacks are for the log alone
            print(f"  {line[:150]}", flush=True)

    return write


if __name__ == "__main__":
    sys.exit(main())
