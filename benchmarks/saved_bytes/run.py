"""Hold plans against the op-level lower bound: so many bytes saved, how many recompute seconds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt._choose.candidates.search import find_candidates
from autockpt.solvers import Infeasible, simulate, solve
from benchmarks.environment import table, write
from benchmarks.models import SMALL, VARIANTS, build
from benchmarks.saved_bytes.bound import saved_bound, saved_dataflow
from benchmarks.saved_bytes.problem import at_apex, by_functions, timed_by_operators
from tests.zoo import loss_of

SHARES = (0.7, 0.5, 0.35)
TIME_LIMIT_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", action="append", choices=sorted({**SMALL, **VARIANTS}), help="only this one; may be repeated"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raw = {name: measure(name) for name in arguments.model or [*SMALL, *VARIANTS]}
    cells = [[name, *(cell(point) for point in points)] for name, points in raw.items()]
    write(Path(__file__).parent, {"models": raw}, table(["model", *(f"{share:.0%}" for share in SHARES)], cells))


def measure(name: str) -> list[dict[str, Any]]:
    """Record a model; for each share, find the bounds and the cheapest plan."""
    case = build(name)
    profile = timed_by_operators(autockpt.profile(case.model, case.kwargs, loss=loss_of))
    candidates = find_candidates(profile)
    problem = at_apex(candidates)
    saved_bytes = simulate(problem, ()).peak_bytes
    flow = saved_dataflow(profile)
    functions = by_functions(flow, profile.ops.function)
    points = []
    for share in SHARES:
        held_bytes = int(share * saved_bytes)
        point = {
            "share": share,
            "saved_bytes": held_bytes,
            "forward_op_seconds": sum(profile.ops.seconds),
            "bound_seconds": saved_bound(flow, held_bytes),
            "function_bound_seconds": saved_bound(functions, held_bytes),
        }
        try:
            solution = solve(problem, held_bytes, solver="ilp", seconds=TIME_LIMIT_SECONDS)
        except Infeasible as error:
            points.append({**point, "error": str(error)})
            continue
        points.append(
            {
                **point,
                "recompute_seconds": solution.recompute_seconds,
                "gap": solution.gap,
                "segments": len(solution.chosen),
            }
        )
        print(name, share, cell(points[-1]), flush=True)
    return points


def cell(point: dict[str, Any]) -> str:
    """Lay out a point: bound and plan over the forward's operators, and their ratio, also to functions' own bound."""
    if "error" in point:
        return f"error: {point['error']}"
    forward, bound, seconds = point["forward_op_seconds"], point["bound_seconds"], point["recompute_seconds"]
    ratios = f"{seconds / bound:.2f} ({seconds / point['function_bound_seconds']:.2f})"
    return f"{bound / forward:.1%} / {seconds / forward:.1%} = {ratios}"


if __name__ == "__main__":
    main()
