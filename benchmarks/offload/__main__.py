"""What moving tensors to the host costs beside recomputing them, as predicted for published models on several GPUs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autockpt
from autockpt import Infeasible, Plan, Profile
from autockpt._fit.timed import carried
from benchmarks.environment import table, write
from benchmarks.solving.worker import count_cpu_seconds

MODELS = ("gpt2-xl", "llama-8b", "bert-large", "vit-large")

DEVICES = ("a100-80gb", "h100")

SHARES = (0.6, 0.5, 0.4)
"""Of what the plain step adds to what is there."""

RATES = ("25GB/s", "50GB/s")

GOAL_SECONDS = 10.0
"""Of one solve."""

CLOSE = 1e-3
"""Share of a step by which a plan with moves may cost more than one without: the search has a limit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    asked = parser.parse_args()
    count_cpu_seconds()  # what else the machine does must not decide which plan is found
    rows = [row for model in asked.models for device in DEVICES for row in run(model, device)]
    write(Path(__file__).parent, {"rows": rows}, show(rows))


def run(model: str, device: str) -> Iterator[dict[str, Any]]:
    """Solve for each share without moves, and with them at each rate."""
    profile = carried(Profile.load(model), device)
    static_bytes = profile.static.total_bytes
    added_bytes = profile.plain_peak_bytes - static_bytes
    for share in SHARES:
        budget_bytes = static_bytes + round(share * added_bytes)
        row: dict[str, Any] = {"model": model, "device": device, "share": share, "budget_bytes": budget_bytes}
        for name, offload in (("recompute", None), *((rate, f"host@{rate}") for rate in RATES)):
            row[name] = solved(profile, budget_bytes, offload)
        yield row


def solved(profile: Profile, budget_bytes: int, offload: str | None) -> dict[str, Any]:
    """One plan, and how long it took; no overhead where there is none."""
    began = time.perf_counter()
    try:
        plan: Plan | None = autockpt.solve(profile, budget_bytes, offload=offload)
    except Infeasible:
        plan = None
    seconds = time.perf_counter() - began
    if plan is None:
        return {"seconds": seconds, "overhead": None, "moved_bytes": 0}
    moved_bytes = sum(segment.moved_bytes for segment in plan.segments)
    waits = plan.recompute_seconds - sum(segment.recompute_seconds for segment in plan.segments)
    return {
        "seconds": seconds,
        "overhead": plan.recompute_overhead,
        "moved_bytes": moved_bytes,
        "beside_bytes": sum(segment.moved_bytes for segment in plan.segments if segment.until is not None),
        "waits": max(waits, 0.0) / plan.plain_seconds,
    }


def show(rows: list[dict[str, Any]]) -> str:
    """The summary, and a line for each model, device and share."""
    each = [(row, row[rate]) for row in rows for rate in RATES]
    above = [found for row, found in each if _above(row["recompute"]["overhead"], found["overhead"])]
    lower = [found for row, found in each if _lower(row["recompute"]["overhead"], found["overhead"])]
    longest = max(row[name]["seconds"] for row in rows for name in ("recompute", *RATES))
    summary = (
        f"{len(above)} of {len(each)} plans with moves cost more than the one without (goal: none), {len(lower)} less. "
        f"A solve took at most {longest:.1f} s of the processor (goal: {GOAL_SECONDS:g})."
    )
    heads = ["model", "device", "share", "recompute alone", *(f"with {rate}" for rate in RATES)]
    lines = [
        [row["model"], row["device"], f"{row['share']:.0%}", *(_cell(row[name]) for name in ("recompute", *RATES))]
        for row in rows
    ]
    return f"{summary}\n\n{table(heads, lines)}"


def _above(alone: float | None, moving: float | None) -> bool:
    return alone is not None and (moving is None or moving > alone + CLOSE)


def _lower(alone: float | None, moving: float | None) -> bool:
    return moving is not None and (alone is None or moving < alone - CLOSE)


def _cell(found: dict[str, Any]) -> str:
    if found["overhead"] is None:
        return "no plan"
    moved = f" ({found['moved_bytes'] / 1e9:.1f} GB)" if found["moved_bytes"] else ""
    return f"{found['overhead']:.1%}{moved}"


if __name__ == "__main__":
    main()
