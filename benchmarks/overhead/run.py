"""Hold the recompute overhead that plans predict against the measured one, with the standard error of that.

One model a row, and a twin that stays plain: both step in turns, now the one first and now the other, until the
median of the pairs' ratios is known well enough or the time is up. A plain model beside its twin is measured
in the same way. Each model has a process of its own, as in a training.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt import Infeasible, Plan, Profile
from benchmarks.environment import table, with_steady_allocator, write
from benchmarks.frontier.derive import standard_error
from benchmarks.frontier.measure import times
from benchmarks.models import TRANSFORMERS, build
from tests.zoo import Case, loss_of

SHARES = (0.8, 0.6, 0.4)
"""Of what the plain step adds to what is there; where the least that can be is more, that instead."""

SECONDS, LEAST_PAIRS = 25.0, 15
"""For how long each model is timed, and over how many pairs at least."""

POINTS = 0.02
"""The claim: predicted and measured overhead lie within so much of a plain step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(TRANSFORMERS), choices=list(TRANSFORMERS))
    arguments = parser.parse_args()
    with_steady_allocator()
    torch.set_num_threads(1)  # as in the models' processes, for what the results say of it
    alone = multiprocessing.get_context("spawn")
    rows = []
    for name in arguments.models:
        with ProcessPoolExecutor(1, mp_context=alone) as pool:
            rows += pool.submit(run_model, name).result()
    write(Path(__file__).parent, {"rows": rows}, report(rows))


def run_model(name: str) -> list[dict[str, Any]]:
    """Predict, then measure: no plan, and one for each share."""
    torch.set_num_threads(1)
    case = build(name)
    twin = Case(copy.deepcopy(case.model), case.kwargs)
    for each in (case, twin):
        each.step()
    profile = autockpt.profile(case.model, case.kwargs, loss=loss_of)
    rows = []
    for share in (None, *SHARES):
        plan = Plan() if share is None else plan_for(profile, share)
        assert share is None or plan.segments, f"{name} at {share:.0%}: nothing to recompute, and nothing to measure"
        autockpt.apply(case.model, plan=plan)
        timed = times(twin, case, seconds=SECONDS, least_pairs=LEAST_PAIRS)
        autockpt.remove(case.model)
        rows.append(
            {
                "model": name,
                "share": share,
                "peak_bytes": plan.peak_bytes,
                "segments": len(plan.segments),
                "units": sum(len(segment.keep) + len(segment.skip) for segment in plan.segments),
                "predicted": plan.recompute_overhead,
                "recorded_plain_seconds": profile.plain_seconds,
                "overhead": timed.ratio - 1,
                "error": standard_error(timed.quartiles, timed.pairs),
                "pairs": timed.pairs,
            }
        )
        print(*cells(rows[-1]), sep=" | ", flush=True)
    return rows


def plan_for(profile: Profile, share: float) -> Plan:
    """The plan within a share of what the plain step adds, or the one with the lowest peak."""
    plain_bytes = autockpt.solve(profile, 2**62).peak_bytes - profile.static.total_bytes
    try:
        return autockpt.solve(profile, profile.static.total_bytes + round(share * plain_bytes))
    except Infeasible as error:
        return autockpt.solve(profile, error.minimum_bytes)


def report(rows: list[dict[str, Any]]) -> str:
    """Summary and table."""
    planned = [row for row in rows if row["share"] is not None]
    off = sorted(abs(row["predicted"] - row["overhead"]) for row in planned)
    nulls = [f"{row['overhead']:+.1%}" for row in rows if row["share"] is None]
    summary = (
        f"|predicted − measured|: median {off[len(off) // 2]:.1%} of a plain step, worst {off[-1]:.1%}; "
        f"{sum(each <= POINTS for each in off)} of {len(off)} within {POINTS:.0%}. Standard error of the measured "
        f"ones: at most {max(row['error'] for row in planned):.1%}. A plain model beside its twin: {', '.join(nulls)}."
    )
    heads = ["model", "of the plain step's bytes", "segments", "units", "predicted", "measured", "off", "pairs"]
    return f"{summary}\n\n{table(heads, map(cells, rows))}"


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    plain = row["share"] is None
    return [
        row["model"],
        "plain" if plain else f"{row['share']:.0%}",
        str(row["segments"]),
        str(row["units"]),
        f"{row['predicted']:.1%}",
        f"{row['overhead']:.1%} ± {row['error']:.1%}",
        f"{row['predicted'] - row['overhead']:+.1%}",
        str(row["pairs"]),
    ]


if __name__ == "__main__":
    main()
