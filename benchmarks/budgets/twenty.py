"""Take twenty budgets a model, from the lowest reachable peak to the plain one, off its frontier, and measure each."""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import autockpt
from benchmarks.budgets.run import run_plan
from benchmarks.environment import RESULTS, environment, table
from benchmarks.models import SMALL, build
from tests.end_to_end.reference import Reference

BUDGETS = 20
TIME_LIMIT_SECONDS = 30.0
FOLDER = Path(__file__).parent / "twenty"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(SMALL), choices=list(SMALL))
    torch.set_num_threads(1)
    models = {name: run_model(name) for name in parser.parse_args().models}
    rows = [row for model in models.values() for row in model["rows"]]
    recomputing = [row for row in rows if row["segments"]]
    errors = sorted(abs(row["error"]) for row in rows)
    summary = (
        f"{sum(row['within'] for row in rows)} of {len(rows)} measured peaks within their budgets; "
        f"{sum(row['exact'] for row in rows)} of {len(rows)} bit for bit exact; "
        f"{sum(row['replays'] > 0 and row['freed_bytes'] > 0 for row in recomputing)} of {len(recomputing)} plans with "
        f"segments replayed and freed bytes; |predicted − measured| / measured: median {errors[len(errors) // 2]:.4%}, "
        f"worst {errors[-1]:.4%}; cost never rises with the budget: {'yes' if falling(models) else 'NO'}."
    )
    FOLDER.mkdir(exist_ok=True)
    where = environment()
    (FOLDER / "results.json").write_text(json.dumps({"environment": where, "models": models}, indent=1) + "\n")
    readme = FOLDER / "README.md"
    said = ", ".join(f"{key} {value}" for key, value in where.items() if key != "command")
    heads = [
        "model",
        "plain",
        "minimum",
        "frontier took",
        "recompute overhead at 90, 70, 50, 30, 0 % of the way",
        "worst error",
    ]
    cells = [line(name, model) for name, model in models.items()]
    text = f"`{where['command']}`: {said}.\n\n{summary}\n\n{table(heads, cells)}\n"
    readme.write_text(f"{readme.read_text().partition(RESULTS)[0]}{RESULTS}\n\n{text}")


def run_model(name: str) -> dict[str, Any]:
    """Solve a model's frontier, then run what it offers for each budget."""
    plain = Reference(build(name))
    began = time.perf_counter()
    found = autockpt.frontier(plain.profile, points=BUDGETS, time_limit_seconds=TIME_LIMIT_SECONDS)
    seconds = time.perf_counter() - began
    lowest, highest = found.minimum_bytes, found.plain_peak_bytes
    rows = []
    for i in range(BUDGETS):
        budget_bytes = lowest + (highest - lowest) * i // (BUDGETS - 1)
        plan = found.within(budget_bytes)
        row = {"budget_bytes": budget_bytes, "recompute_seconds": plan.recompute_seconds}
        rows.append({**row, **run_plan(plain, plan, budget_bytes)})
    return {"plain_bytes": highest, "minimum_bytes": lowest, "frontier_seconds": seconds, "rows": rows}


def falling(models: dict[str, Any]) -> bool:
    """Whether no larger budget costs more than a smaller one."""
    return all(
        more["recompute_seconds"] <= less["recompute_seconds"]
        for model in models.values()
        for less, more in pairwise(model["rows"])
    )


def line(name: str, model: dict[str, Any]) -> list[str]:
    """One line of the table."""
    rows = model["rows"]
    shown = [rows[round(share * (BUDGETS - 1))] for share in (0.9, 0.7, 0.5, 0.3, 0.0)]
    return [
        name,
        f"{model['plain_bytes'] / 1e6:.1f} MB",
        f"{model['minimum_bytes'] / model['plain_bytes']:.1%}",
        f"{model['frontier_seconds']:.0f} s",
        ", ".join(f"{row['recompute_overhead']:.1%}" for row in shown),
        f"{max(abs(row['error']) for row in rows):.4%}",
    ]


if __name__ == "__main__":
    main()
