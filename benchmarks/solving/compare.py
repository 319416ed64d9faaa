"""Solve the same profiles with this checkout and with the frozen wheel of `make old`, side by side.

Shipped: the profiles frozen under tests/data, at four shares of what the plain step adds, and at the lowest peak. The
frozen version is run three times; how far its own runs lie apart says what a difference means.
Small: eight models of seconds, recorded here by the frozen version, a part of the way from their lowest peak to the
plain one.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from autockpt._data.hardware.rooflines import IDLE_HOST
from benchmarks import older
from benchmarks.environment import RESULTS, environment, table

ROOT = Path(__file__).parents[2]
OLD = ROOT / ".venv-old" / "bin" / "python"
WORKER = Path(__file__).with_name("worker.py")
FOLDER = Path(__file__).with_name("compared")

SHIPPED = ("35%", "50%", "65%", "80%", "min")
BASELINES = 3
"""Runs of the frozen version."""

SMALL = ("bert", "t5", "gpt2", "swin", "llama", "resnet50", "densenet", "unet")
REMADE = ("bert", "t5")
"""Models for which the frozen version multiplies dropout's mask again instead of keeping the product."""

WAY = (0.12, 0.35, 0.65)
"""Of the way from the lowest peak to the plain one."""

GOAL_WORST = 1.03
"""Recompute seconds against the most of the frozen version's runs."""

Rows = dict[str, list[dict[str, Any]]]


def compare_shipped(names: Sequence[str]) -> None:
    """Run what is missing of the baselines, then this checkout; write the raw rows and the table."""
    paths = {path.name.partition(".")[0]: path for path in sorted((ROOT / "tests/data/profiles").glob("*.json.gz"))}
    wanted = {name: path for name, path in paths.items() if not names or name in names}
    stored = FOLDER / "shipped-baselines.json"
    baselines: list[Rows] = json.loads(stored.read_text())["runs"] if stored.exists() else []
    while len(baselines) < BASELINES:
        baselines.append({name: solved(OLD, path, SHIPPED) for name, path in paths.items()})
        stored.write_text(json.dumps({"environment": environment(), "runs": baselines}, indent=1) + "\n")
    now = {name: solved(Path(sys.executable), path, SHIPPED) for name, path in wanted.items()}
    _write("shipped", {"now": now}, report(baselines, now))


def compare_small(names: Sequence[str]) -> None:
    """Record and solve with the frozen version, then solve with this checkout."""
    before: Rows = {}
    now: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for name in SMALL if not names or name in names]:
            path = Path(folder, f"{name}.json.gz")
            _run(OLD, Path(__file__).with_name("record.py"), [str(ROOT), name, str(path)])
            (lowest,) = solved(OLD, path, ["min"])
            added = lowest["plain_bytes"] - lowest["peak_bytes"]
            budgets = [str(lowest["peak_bytes"] + round(share * added)) for share in WAY]
            before[name] = [lowest, *solved(OLD, path, budgets)]
            now[name] = solved(Path(sys.executable), path, ["min", *budgets])
    _write("small", {"before": before, "now": now}, report([before], now))


def solved(python: Path, profile: Path, budgets: Iterable[str]) -> list[dict[str, Any]]:
    """Let an interpreter solve a profile of the frozen version for some budgets; a row each.

    That version does not count what recomputing costs the host of a device, so neither does this checkout here.
    """
    print(f"{python.parent.parent.name}: {profile.name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = profile
        if python != OLD:
            path = Path(folder, profile.name)
            msgspec.structs.replace(older.read(profile), device=IDLE_HOST).save(path)
        return [json.loads(line) for line in _run(python, WORKER, [str(path), *budgets]).splitlines()]


def _run(python: Path, script: Path, arguments: Sequence[str]) -> str:
    """Run a script: the frozen version sees no folder of this checkout, the present one its root."""
    if python == OLD and not OLD.exists():
        raise SystemExit("there is no frozen version to compare with; run `make old` first")
    flags = ["-I"] if python == OLD else []
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(python), *flags, str(script), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environ).stdout


def report(baselines: Sequence[Rows], now: Rows) -> str:
    """Lay out each budget against the baselines; say the means, the worst, and what became infeasible."""
    points = [
        Point(profile=name, label=_label(row, number), now=row, before=[each[name][number] for each in baselines])
        for name, found in now.items()
        for number, row in enumerate(found)
    ]
    both = [point for point in points if point.feasible]
    budgets = [point for point in both if not point.lowest]
    means = {"all": both, "those at a budget": budgets}
    for name in sorted(set(REMADE) & set(now)):
        means[f"{name} at a budget"] = [point for point in budgets if point.profile == name]
        means["the others at a budget"] = [point for point in budgets if point.profile not in REMADE]
    worse = [f"{p.profile} at {p.label} {p.against_worst:.3f}" for p in both if p.against_worst > GOAL_WORST]
    other = [f"{p.profile} at {p.label}" for p in points if p.changed]
    seconds = [sum(row["cpu_seconds"] for name in now for row in run[name]) for run in (*baselines, now)]
    said = [
        f"recompute seconds against the mean of the runs before, geometric means over {len(both)} points: "
        + ", ".join(f"{of} {_mean([point.ratio for point in some]):.4f}" for of, some in means.items()),
        f"above the worst run before by more than {GOAL_WORST - 1:.0%}: {', '.join(worse) or 'none'}",
        f"lowest peaks against the lowest before, of what the plain step adds: at most "
        f"{max(p.peak for p in both if p.lowest):+.2%}",
        f"feasible only before, or only now: {', '.join(other) or 'none'}",
        f"CPU seconds in all: before {', '.join(f'{each:.0f}' for each in seconds[:-1])}; now {seconds[-1]:.0f}",
    ]
    heads = ["profile", "budget", "overhead before (its runs)", "now", "ratio", "peak", "CPU", "choice gap"]
    lines = [point.cells() for point in points]
    return f"{'. '.join(each[0].upper() + each[1:] for each in said)}.\n\n{table(heads, lines)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One profile at one budget.

    Attributes:
        profile: its name.
        label: of the budget.
        now: the row of this checkout.
        before: those of the baselines.
    """

    profile: str
    label: str
    now: dict[str, Any]
    before: Sequence[dict[str, Any]]

    @property
    def lowest(self) -> bool:
        """Whether the lowest peak was asked for, not a budget."""
        return bool(self.now["budget"] == "min")

    @property
    def feasible(self) -> bool:
        """Whether all have a plan."""
        return all(row["peak_bytes"] is not None for row in (self.now, *self.before))

    @property
    def changed(self) -> bool:
        """Whether some have a plan, and others none."""
        return not self.feasible and any(row["peak_bytes"] is not None for row in (self.now, *self.before))

    @property
    def mean_seconds(self) -> float:
        """Of the baselines."""
        return sum(row["recompute_seconds"] for row in self.before) / len(self.before)

    @property
    def ratio(self) -> float:
        """Recompute seconds against the mean before; 1 where nothing is recomputed."""
        return self.now["recompute_seconds"] / self.mean_seconds if self.mean_seconds else 1.0

    @property
    def against_worst(self) -> float:
        """The same against the most before."""
        most = max(row["recompute_seconds"] for row in self.before)
        return self.now["recompute_seconds"] / most if most else 1.0

    @property
    def peak(self) -> float:
        """By how much the peak lies above the lowest before, of what the plain step adds."""
        lowest = min(row["peak_bytes"] for row in self.before)
        return float(self.now["peak_bytes"] - lowest) / (self.now["plain_bytes"] - self.now["static_bytes"])

    def cells(self) -> list[str]:
        """One line of the table."""
        if not self.feasible:
            said = ["infeasible" if row["peak_bytes"] is None else "feasible" for row in (*self.before, self.now)]
            return [self.profile, self.label, ", ".join(said[:-1]), said[-1], "", "", "", ""]
        spread = ", ".join(f"{row['recompute_seconds'] / self.mean_seconds - 1:+.1%}" for row in self.before)
        seconds = sum(row["cpu_seconds"] for row in self.before) / len(self.before)
        gap = self.now["choice_gap"]
        return [
            self.profile,
            self.label,
            f"{self.mean_seconds / self.now['plain_seconds']:.2%}" + (f" ({spread})" if len(self.before) > 1 else ""),
            f"{self.now['recompute_seconds'] / self.now['plain_seconds']:.2%}",
            f"{self.ratio:.3f}",
            f"{self.peak:+.2%}",
            f"{seconds:.2f} / {self.now['cpu_seconds']:.2f} s",
            "" if gap is None else f"{gap:.2%}",
        ]


def _label(row: dict[str, Any], number: int) -> str:
    """Name a budget."""
    return f"{WAY[number - 1]:.0%} of the way" if row["budget"].isdigit() else str(row["budget"])


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _write(name: str, raw: dict[str, Any], text: str) -> None:
    where = environment()
    (FOLDER / f"{name}.json").write_text(json.dumps({"environment": where, **raw}, indent=1) + "\n")
    said = ", ".join(f"{key} {value}" for key, value in where.items() if key != "command")
    (FOLDER / f"{name}.md").write_text(f"{RESULTS}\n\n`{where['command']}`: {said}.\n\n{text}\n")
    print(text)
