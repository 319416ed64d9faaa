"""Hold plans against the op-level lower bound: so many bytes saved, how many recompute seconds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt._bound import least_recompute_seconds_for_saved_bytes
from autockpt._candidates import find_candidates
from autockpt.solvers import Infeasible, simulate, solve
from benchmarks.environment import table, write
from benchmarks.models import SMALL, build
from benchmarks.saved_bytes.problem import at_apex, timed_by_operators

SHARES = (0.7, 0.5, 0.35)
TIME_LIMIT_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", choices=sorted(SMALL), help="only this one; may be repeated")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raw = {name: measure(name) for name in arguments.model or SMALL}
    cells = [[name, *(cell(point) for point in points)] for name, points in raw.items()]
    write(Path(__file__).parent, {"models": raw}, table(["model", *(f"{share:.0%}" for share in SHARES)], cells))


def measure(name: str) -> list[dict[str, Any]]:
    """Record a model; for each share, find the bound, the cheapest plan, and the cheapest of whole calls."""
    case = build(name)
    profile = timed_by_operators(autockpt.profile(case.model, case.kwargs))
    candidates = find_candidates(profile)
    problem = at_apex(candidates, profile)
    saved_bytes = simulate(problem, ()).peak_bytes
    forward_seconds = sum(profile.ops.seconds)
    points = []
    for share in SHARES:
        held_bytes = int(share * saved_bytes)
        bound = least_recompute_seconds_for_saved_bytes(profile, held_bytes)
        point = {"share": share, "saved_bytes": held_bytes, "forward_op_seconds": forward_seconds, "bound": bound}
        try:
            solution = solve(problem, held_bytes, solver="ilp", time_limit_seconds=TIME_LIMIT_SECONDS)
        except Infeasible as error:
            points.append({**point, "error": str(error)})
            continue
        replays = sum(bool(candidates.runs[c].freed_bytes) for c in solution.chosen)
        points.append({**point, "seconds": solution.recompute_seconds, "gap": solution.gap, "segments": replays})
        print(name, share, cell(points[-1]), flush=True)
    return points


def cell(point: dict[str, Any]) -> str:
    """Lay out a point: bound and plan over the forward's operators, and their ratio."""
    if "error" in point:
        return f"error: {point['error']}"
    forward, bound, seconds = point["forward_op_seconds"], point["bound"], point["seconds"]
    return f"{bound / forward:.1%} / {seconds / forward:.1%} = {seconds / bound:.2f}"


if __name__ == "__main__":
    main()
