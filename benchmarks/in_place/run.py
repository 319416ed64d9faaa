"""Train models under a budget that came without a batch, from their first step on, and hold every step to it.

    python -m benchmarks.in_place.run models    # twelve of ours and twenty of other people
    python -m benchmarks.in_place.run large     # three above a gigabyte: resident memory
    python -m benchmarks.in_place.run cost      # the first three steps beside plain ones

Only public names of autockpt are used, so that any version can be held to the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.environment import environment, table, write_parts
from benchmarks.in_place.allocator import environment_with_reader
from benchmarks.models import SMALL
from benchmarks.others import UNLABELLED

FOLDER = Path(__file__).parent

SHARE = 0.6
"""Of what the plain step adds to what was there as it began: the budget."""

MOST_SECONDS = 600

LARGE = ("gpt2", "vit", "convolutions")

EXTRA_BYTES, EXTRA_SHARE = 64_000_000, 0.05
"""By which resident memory may grow beyond the budget: what the library itself loads, and pages that are not full."""

COSTS = (0.1, 1.0, 5.0)
"""Seconds of a plain step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--models", nargs="+", help="only these of `models` and `large`; the other rows stay")
    asked = parser.parse_args()
    for part in asked.parts or PARTS:
        run, show = PARTS[part]
        file, where = FOLDER / f"{part}.json", environment()
        rows = json.loads(file.read_text())["rows"] if asked.models and file.exists() else {}
        for name, row in run(asked.models):
            rows[name] = row
            print(show({name: row}).splitlines()[-1], flush=True)
            file.write_text(json.dumps({"environment": where, "rows": rows}, indent=1) + "\n")
    write_parts(FOLDER, {part: show for part, (_, show) in PARTS.items()})


def worker(module: str, *arguments: object, **variables: str) -> dict[str, Any]:
    """Run one measurement in a process of its own, and return what it prints; or how it ended."""
    command = [sys.executable, "-m", f"benchmarks.in_place.{module}", *map(str, arguments)]
    environment = environment_with_reader() | variables
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {MOST_SECONDS} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def run_models(asked: list[str] | None) -> Any:
    """Each model plain, and then under a budget."""
    for name in [each for each in (*SMALL, *UNLABELLED) if not asked or each in asked]:
        yield name, run_model(name)


def run_model(name: str) -> dict[str, Any]:
    """Train both twins; where no plan meets the budget, again half way between the lowest peak and the plain one."""
    plain = worker("worker", name)
    static_bytes, plain_bytes = plain["start_bytes"][-1], max(plain["peak_bytes"])
    row: dict[str, Any] = {"static_bytes": static_bytes, "plain_bytes": plain_bytes, "share": SHARE}
    row["budget_bytes"] = static_bytes + round(SHARE * (plain_bytes - static_bytes))
    planned = worker("worker", name, row["budget_bytes"])
    if "minimum_bytes" in planned:
        row["minimum_bytes"] = planned["minimum_bytes"]
        row["budget_bytes"] = (planned["minimum_bytes"] + plain_bytes) // 2
        planned = worker("worker", name, row["budget_bytes"])
    one, other = plain.pop("noted"), planned.pop("noted", {})
    row["noted"] = len(one)
    row["differing"] = sorted(each for each in {**one, **other} if one.get(each) != other.get(each))
    return row | {"plain": plain, "planned": planned}


def show_models(rows: dict[str, Any]) -> str:
    """The summary, and a line a model."""
    ran = {name: row for name, row in rows.items() if "peak_bytes" in row["planned"]}
    steps = [peak <= row["budget_bytes"] for row in ran.values() for peak in row["planned"]["peak_bytes"]]
    errors = sorted(abs(error) for row in ran.values() if (error := prediction_error(row)) is not None)
    summary = (
        f"{len(ran)} of {len(rows)} ran; {sum(not row['differing'] for row in ran.values())} of {len(rows)} bit for "
        f"bit the plain twin; {sum(steps)} of {len(steps)} steps within budget; predicted plain peak against measured: "
        + (f"median {statistics.median(errors):.3%}, worst {errors[-1]:.3%}" if errors else "none")
        + f"; {sum('minimum_bytes' in row for row in rows.values())} budgets were infeasible and raised."
    )
    heads = [
        "model",
        "plain peak",
        "budget",
        "highest peak / budget, by step",
        "first plan",
        "segments",
        "predicted plain peak",
        "bits",
        "said",
    ]
    return f"{summary}\n\n{table(heads, [model_line(name, row) for name, row in rows.items()])}"


def model_line(name: str, row: dict[str, Any]) -> list[str]:
    """A model in the table."""
    planned = row["planned"]
    budget = f"{row['budget_bytes'] / 1e6:.1f} MB{', raised' if 'minimum_bytes' in row else ''}"
    line = [name, f"{row['plain_bytes'] / 1e6:.1f} MB", budget]
    if "peak_bytes" not in planned:
        return [*line, planned.get("error", "infeasible"), "", "", "", "", ""]
    error = prediction_error(row)
    return [
        *line,
        " ".join(f"{peak / row['budget_bytes']:.3f}" for peak in planned["peak_bytes"]),
        f"step {planned['planned'].index(True) + 1}" if any(planned["planned"]) else "none",
        str(planned["segments"][-1]),
        "" if error is None else f"{error:+.3%}",
        f"{len(row['differing'])} of {row['noted']} differ" if row["differing"] else "equal",
        "; ".join(planned["said"]),
    ]


def prediction_error(row: dict[str, Any]) -> float | None:
    """By how much the predicted plain peak stands off the measured one, a ratio."""
    predicted = row["planned"].get("predicted_plain_bytes")
    return None if predicted is None else predicted / row["plain_bytes"] - 1


def run_large(asked: list[str] | None) -> Any:
    """Each in processes of its own, in which glibc gives large blocks back as soon as they are free."""
    for name in [each for each in LARGE if not asked or each in asked]:
        variables = {"MALLOC_MMAP_THRESHOLD_": "131072"}
        plain = worker("large", name, **variables)
        budget_bytes = round(plain["start_bytes"][-1] + SHARE * (max(plain["peak_bytes"]) - plain["start_bytes"][-1]))
        planned = worker("large", name, budget_bytes, **variables)
        yield name, {"plain": plain, "budget_bytes": budget_bytes, "planned": planned}


def show_large(rows: dict[str, Any]) -> str:
    """A line a model: how far resident memory rose, step by step."""
    lines = []
    for name, row in rows.items():
        budget, planned = row["budget_bytes"], row["planned"]
        allowed = budget * (1 + EXTRA_SHARE) + EXTRA_BYTES
        grown = planned.get("resident_bytes", [])
        lines.append(
            [
                name,
                f"{max(row['plain']['peak_bytes']) / 1e6:.0f} MB",
                f"{max(row['plain']['resident_bytes']) / 1e6:.0f} MB",
                f"{budget / 1e6:.0f} MB",
                " ".join(f"{each / 1e6:.0f}" for each in grown) or planned.get("error", "infeasible"),
                " ".join(f"{each / 1e6:.0f}" for each in planned.get("peak_bytes", [])),
                f"{sum(each <= allowed for each in grown)} of {len(grown)}",
            ]
        )
    heads = [
        "model",
        "plain peak",
        "plain resident growth",
        "budget",
        "resident growth by step, MB",
        "allocator's peak by step, MB",
        "within budget + 64 MB + 5 %",
    ]
    return table(heads, lines)


def run_cost(asked: list[str] | None) -> Any:
    """Steps of some lengths; the pairs of each in one process."""
    for seconds in COSTS:
        yield f"{seconds:g} s", worker("cost", seconds)


def show_cost(rows: dict[str, Any]) -> str:
    """A line a length of step."""
    heads = [
        "plain step",
        "three plain steps",
        "the first three, planning apart",
        "plain steps more, median of pairs (lowest to highest)",
        "planning",
    ]
    return table(heads, [cost_line(name, row) for name, row in rows.items()])


def cost_line(name: str, row: dict[str, Any]) -> list[str]:
    """A length of step in the table."""
    if "error" in row:
        return [name, row["error"], "", "", ""]
    pairs = row["pairs"]
    more = [3 * (pair["first_seconds"] - pair["plain_seconds"]) / pair["plain_seconds"] for pair in pairs]
    middle = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
    return [
        f"{name}, measured {middle['plain_seconds'] / 3:.2f} s",
        f"{middle['plain_seconds']:.2f} s",
        f"{middle['first_seconds']:.2f} s",
        f"{statistics.median(more):.2f} ({min(more):.2f} to {max(more):.2f})",
        f"{middle['planning_seconds']:.2f} s",
    ]


PARTS: dict[str, tuple[Callable[[list[str] | None], Any], Callable[[dict[str, Any]], str]]] = {
    "models": (run_models, show_models),
    "large": (run_large, show_large),
    "cost": (run_cost, show_cost),
}


if __name__ == "__main__":
    main()
