"""Record models with this checkout and with the frozen wheel of `make old`, and compare what plans come of it.

Two recordings never take the same time, and a solver chooses by seconds. So both profiles get the seconds of the
frozen version's: what is left of a difference is what was seen of the step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import autockpt
from autockpt import Infeasible, Profile
from benchmarks import older
from benchmarks.environment import environment, table
from benchmarks.models import SMALL
from benchmarks.others import LABELLED

ROOT = Path(__file__).parents[2]
OLD = ROOT / ".venv-old" / "bin" / "python"
WORKER = Path(__file__).with_name("worker.py")
FOLDER = Path(__file__).with_name("compared")

WAY = (0.12, 0.35, 0.65)
"""Of the way from the frozen version's lowest peak to the plain one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*SMALL, *LABELLED])
    parser.add_argument("--store", action="store_true", help="write down the rows and the table")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        rows.append(compared(name))
        print(json.dumps(rows[-1]), flush=True)
    heads = [
        "model",
        "plain peak",
        "lowest peak",
        *(f"seconds at {way:.0%} of the way" for way in WAY),
        "record seconds",
    ]
    text = table(heads, [_cells(row) for row in rows])
    print(text)
    if arguments.store:
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / "recorded.json").write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
        (FOLDER / "recorded.md").write_text(f"{summary(rows)}\n\n{text}\n")


def compared(name: str) -> dict[str, Any]:
    """Record one model with both; a row of ratios, present over frozen."""
    with tempfile.TemporaryDirectory() as folder:
        old, old_seconds = recorded(OLD, name, Path(folder, "old.json"))
        new, new_seconds = recorded(Path(sys.executable), name, Path(folder, "new.json"))
    new = with_seconds_of(new, old)
    lowest = [autockpt.solve(profile, "lowest") for profile in (old, new)]
    row: dict[str, Any] = {
        "model": name,
        "plain": lowest[1].plain_peak_bytes / lowest[0].plain_peak_bytes,
        "lowest": lowest[1].peak_bytes / lowest[0].peak_bytes,
        "refused": [len(plan.refused) for plan in lowest],
        "record_seconds": [old_seconds, new_seconds],
        "seconds": [],
    }
    for way in WAY:
        budget = lowest[0].peak_bytes + round(way * (lowest[0].plain_peak_bytes - lowest[0].peak_bytes))
        try:
            before, now = (autockpt.solve(profile, budget).recompute_seconds for profile in (old, new))
            row["seconds"].append([before, now, old.plain_seconds])
        except Infeasible:
            row["seconds"].append([0.0, math.inf, old.plain_seconds])
    return row


def recorded(python: Path, name: str, path: Path) -> tuple[Profile, float]:
    """Let an interpreter record a model; its profile, and how long that took."""
    flags = ["-I"] if python == OLD else []
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(python), *flags, str(WORKER), str(ROOT), name, str(path)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environ).stdout
    return older.read(path) if python == OLD else Profile.load(path), float(said.split()[-1])


def with_seconds_of(profile: Profile, other: Profile) -> Profile:
    """Put the seconds of another recording of the same step into a profile, by the keys of calls and functions."""
    calls = {call.key: call for call in other.calls}
    functions = {_key(other, i): seconds for i, seconds in enumerate(other.functions.seconds)}
    changed: dict[str, Any] = {
        "plain_seconds": other.plain_seconds,
        "calls": tuple(
            msgspec.structs.replace(
                call, enter_seconds=calls[call.key].enter_seconds, exit_seconds=calls[call.key].exit_seconds
            )
            if call.key in calls
            else call
            for call in profile.calls
        ),
        "functions": msgspec.structs.replace(
            profile.functions,
            seconds=tuple(functions.get(_key(profile, i), s) for i, s in enumerate(profile.functions.seconds)),
        ),
    }
    if profile.ops.name == other.ops.name:
        changed["ops"] = msgspec.structs.replace(profile.ops, seconds=other.ops.seconds)
    if len(profile.saves) == len(other.saves):
        changed["saves"] = msgspec.structs.replace(profile.saves, seconds=other.saves.seconds)
    return msgspec.structs.replace(profile, **changed)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Say the worst of each, and the mean."""
    ratios = [now / before for row in rows for before, now, _ in row["seconds"] if before]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    plain, lowest = ([row[what] for row in rows] for what in ("plain", "lowest"))
    return (
        f"{len(rows)} models. Plain peaks over those of 8cfb884: {min(plain):.5f} to {max(plain):.5f}; lowest peaks: "
        f"{min(lowest):.4f} to {max(lowest):.4f}; recompute seconds: geometric mean {mean:.4f}, "
        f"worst {max(ratios):.3f}."
    )


def _key(profile: Profile, function: int) -> tuple[str, str]:
    return profile.calls[profile.functions.call[function]].key, profile.functions.key(function)


def _cells(row: dict[str, Any]) -> list[str]:
    points = [
        f"{before / plain:.2%} → {now / plain:.2%} ({now / before if before else 1:.3f})"
        for before, now, plain in row["seconds"]
    ]
    before, now = row["record_seconds"]
    return [row["model"], f"{row['plain']:.5f}", f"{row['lowest']:.4f}", *points, f"{before:.2f} → {now:.2f}"]


if __name__ == "__main__":
    main()
