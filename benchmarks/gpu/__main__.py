"""Run the stages on a GPU, or at toy size on a CPU; each writes stageN.json, row by row, and stageN.log."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import tables
from benchmarks.gpu.rows import Sheet, now
from benchmarks.gpu.stages import STAGES, jobs_of
from benchmarks.gpu.supervise import supervise

OUT = Path("build/gpu")
PAIRS = {"full": 5, "tiny": 1}
UNUSABLE = 2


def main() -> int:
    """Run the stages that are asked for; return the exit status: 2 where nothing can run, else 0, whatever rows say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--stage", type=int, choices=STAGES, action="append", help="one of them; all without it")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="of the models")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for JSON, logs and plans; {OUT}")
    parser.add_argument("--inside", type=float, metavar="UNTIL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside is not None:
        return inside(asked.stage[0], asked.device, asked.size, asked.out, asked.inside)

    if asked.device == "cpu":  # two threads that wait for one another on a busy machine take several times as long
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    found: dict[str, Any] = {}
    reason: str | None = "torch is not installed, and nothing here installs it"
    if importlib.util.find_spec("torch") is not None:
        from benchmarks.gpu.machine import environment, refusal

        found = environment()
        reason = refusal(asked.device, found)
    if reason is not None:
        print(f"Error: {reason}", file=sys.stderr)
        return UNUSABLE
    asked.out.mkdir(parents=True, exist_ok=True)
    for number in asked.stage or STAGES:
        stage, path = STAGES[number], asked.out / f"stage{number}.json"
        head = {
            "stage": number,
            "title": stage.title,
            "device": asked.device,
            "size": asked.size,
            "date": now(),
            "command": " ".join(["python", "-m", "benchmarks.gpu", *map(shlex.quote, sys.argv[1:])]),
            "limit_seconds": stage.limit_seconds,
            "environment": found,
        }
        sheet = Sheet(path, head)
        sheet.save()
        path.with_suffix(".log").unlink(missing_ok=True)
        print(f"stage {number}, {stage.title}: {path}", flush=True)
        began = time.monotonic()
        options = ["--stage", str(number), "--device", asked.device, "--size", asked.size, "--out", str(asked.out)]
        until = str(began + stage.begin_seconds)
        command = [sys.executable, "-m", "benchmarks.gpu", *options, "--inside", until]
        supervise(command, path, limit_seconds=stage.limit_seconds)
        sheet = Sheet.load(path)
        sheet.document["seconds"] = round(time.monotonic() - began, 1)
        sheet.save()
        print(f"stage {number}: {sheet.document['seconds']:.0f} s\n\n{tables(sheet.document)}\n", flush=True)
    return 0


def inside(number: int, device: str, size: str, out: Path, until: float) -> int:
    """Run the rows of one stage that are still to run, in this process."""
    import torch

    from benchmarks.gpu.machine import clean
    from benchmarks.gpu.rows import run_jobs
    from benchmarks.gpu.steps import Setting

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if "\n" not in line:  # tracebacks are for the log alone
            print(f"  {line[:150]}", flush=True)

    where = torch.device(device, 0) if device == "cuda" else torch.device(device)
    setting = Setting(device=where, size="tiny" if size == "tiny" else "full", pairs=PAIRS[size])
    folder = out / f"stage{number}"
    folder.mkdir(exist_ok=True)
    # Some virtual machines announce instructions for bfloat16 that oneDNN uses, and lack them.
    with torch.backends.mkldnn.flags(enabled=device == "cuda"):
        jobs = jobs_of(number, setting, folder)
        run_jobs(jobs, Sheet.load(out / f"stage{number}.json"), until=until, clean=lambda: clean(where), log=log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
