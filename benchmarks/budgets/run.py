"""Run every model of the zoo with every solver at several budgets, and write down what was predicted and measured."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt import Infeasible, Plan
from autockpt.solvers import SOLVERS
from benchmarks.environment import table, write
from tests.end_to_end.reference import Reference, counting_replays
from tests.zoo import ZOO, build

PERCENTS = (80, 60, 40)
TIME_LIMIT_SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(ZOO), choices=list(ZOO))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [row for model in arguments.models for row in run_model(model)]
    ran = [row for row in rows if "measured_bytes" in row]
    good = [row for row in ran if row["within"] and row["exact"] and row["replays"] and row["freed_bytes"] > 0]
    errors = sorted(abs(row["error"]) for row in ran)
    summary = (
        f"{len(good)} of {len(ran)} plans replayed, freed bytes, kept their budget and changed nothing; "
        f"|predicted − measured| / measured: median {errors[len(errors) // 2]:.4%}, worst {errors[-1]:.4%}. "
        f"{len(rows) - len(ran)} of {len(rows)} budgets lie below what the solver reaches."
    )
    heads = [
        "model",
        "solver",
        "budget",
        "predicted",
        "measured",
        "used",
        "segments",
        "replays",
        "overhead, predicted",
        "exact",
    ]
    write(Path(__file__).parent, {"rows": rows}, f"{summary}\n\n{table(heads, map(cells, rows))}")


def run_model(name: str) -> list[dict[str, Any]]:
    """Every solver and budget of one model."""
    plain = Reference(build(name))
    return [run_row(name, plain, solver, percent) for solver in SOLVERS if solver != "none" for percent in PERCENTS]


def run_row(name: str, plain: Reference, solver: str, percent: int) -> dict[str, Any]:
    """One plan: predicted first, then run."""
    budget = plain.plain_peak_bytes * percent // 100
    row: dict[str, Any] = {"model": name, "solver": solver, "percent": percent, "budget_bytes": budget}
    began = time.perf_counter()
    try:
        plan = autockpt.solve(plain.profile, budget, solver=solver, seconds=TIME_LIMIT_SECONDS)
    except Infeasible as error:
        return {**row, "minimum_bytes": error.minimum_bytes, "plain_bytes": plain.plain_peak_bytes}
    row["solve_seconds"] = time.perf_counter() - began
    return {**row, **run_plan(plain, plan, budget)}


def run_plan(plain: Reference, plan: Plan, budget: int) -> dict[str, Any]:
    """Apply a plan and measure."""
    with plain.under(plan):
        with counting_replays() as replays:
            outcome = plain.outcome()
        measured = plain.measured_peak()
    return {
        "status": plan.status,
        "segments": len(plan.segments),
        "longest_run": max((len(segment.calls) for segment in plan.segments), default=0),
        "predicted_bytes": plan.peak_bytes,
        "measured_bytes": measured,
        "error": plan.peak_bytes / measured - 1,
        "used": measured / budget,
        "within": measured <= budget,
        "freed_bytes": plain.plain_peak_bytes - measured,
        "replays": len(replays),
        "exact": plain.plain.differences(outcome) == [],
        "recompute_overhead": plan.recompute_overhead,
        "gap": plan.choice_gap,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    head = [row["model"], row["solver"], f"{row['percent']} %"]
    if "measured_bytes" not in row:
        return [*head, f"infeasible, minimum {row['minimum_bytes'] / row['plain_bytes']:.1%}", *[""] * 6]
    return [
        *head,
        f"{row['predicted_bytes'] / 1e6:.3f} MB",
        f"{row['measured_bytes'] / 1e6:.3f} MB",
        f"{row['used']:.1%}",
        f"{row['segments']}, longest {row['longest_run']}",
        str(row["replays"]),
        f"{row['recompute_overhead']:.1%}",
        "yes" if row["exact"] else "NO",
    ]


if __name__ == "__main__":
    main()
