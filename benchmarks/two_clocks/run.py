"""Show a step on two clocks beside what an H100 took, and what choosing by it saves on shipped profiles.

Everything but the rows of the H100 is simulated, on a CPU, in some minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from autockpt import Plan, Profile, solve
from autockpt._choose import candidates as candidates_room
from autockpt._choose.by_clocks import whole_blocks
from autockpt._choose.candidates.from_plan import find_planned
from autockpt._choose.candidates.search import find_candidates
from autockpt._choose.replay_cost.two_clocks import simulate
from autockpt._data.hardware.paces import H100_HOST, H100_SLOWDOWN
from autockpt._data.shipped import names
from autockpt._fit.timed import carried
from autockpt.solvers.deadline import Deadline
from benchmarks.environment import table, write
from benchmarks.two_clocks.fit import HERE, OPTIMIZERS, fitted, on_two_clocks, rows

__all__ = ["main"]

SHARE = 0.6
"""Of what the plain step adds: a budget."""

SECONDS = 2.0
"""For finding every block among candidates."""


def main() -> None:
    beside = [*_beside()]
    chosen = [row for name in ("llama-1b of the bench", *names()) for row in _chosen(name)]
    text = "\n\n".join([_measured_table(beside), _chosen_table(chosen)])
    write(HERE, {"beside": beside, "chosen": chosen}, text)


def _beside() -> Iterator[dict[str, Any]]:
    """Put simulated steps beside measured ones."""
    measured = rows()
    for name, of in fitted().items():
        found = on_two_clocks(name, of)
        for way, clocks in found.items():
            yield {
                "model": name,
                "way": way,
                "measured_seconds": measured[name][f"{way}: step seconds"],
                "seconds": clocks.step_seconds,
                "measured_host_seconds": measured[name][f"{way}: host seconds"],
                "host_seconds": clocks.host_seconds,
                "host_pace_seconds": clocks.host_pace_seconds,
            }


def _chosen(name: str) -> Iterator[dict[str, Any]]:
    """Choose as before and by two clocks, on an H100: within a share, and at the peak of every block."""
    bench = name.startswith("llama-1b of")
    profile = Profile.load(HERE / "llama-1b.json.gz") if bench else carried(Profile.load(name), "h100")
    host, device = H100_HOST, H100_SLOWDOWN
    if bench:  # where a step was measured, the optimizer counts as it did there
        host_seconds, kernels, seconds = OPTIMIZERS["llama-1b"]
        host = replace(host, optimizer_seconds=host_seconds, optimizer_kernels=kernels)
        device = replace(device, optimizer_seconds=seconds)
    static = profile.static.total_bytes
    budgets = {f"{SHARE:.0%}": int(static + SHARE * (profile.plain_peak_bytes - static))}
    found = find_candidates(profile, deadline=Deadline.after(SECONDS))
    (every,) = whole_blocks(found)
    budgets["every block's peak"] = every.peak_bytes
    blocks = Plan(segments=tuple(found.replays[i].segment for i in every.chosen))

    def overhead(plan: Plan) -> float:
        planned = find_planned(profile, plan)
        clocks, plain = (simulate(planned.index, each, host, device) for each in (planned.replays, ()))
        return clocks.step_seconds / plain.step_seconds - 1

    for what, budget_bytes in budgets.items():
        with mock.patch.object(candidates_room, "paces_of", lambda _: None):
            before, before_seconds = _timed(profile, budget_bytes)
        plan, seconds = _timed(profile, budget_bytes)
        yield {
            "model": name,
            "budget": what,
            "budget_bytes": budget_bytes,
            "every_block": overhead(blocks),
            "one_clock": overhead(before),
            "two_clocks": overhead(plan),
            "solving_before": before_seconds,
            "solving": seconds,
        }


def _timed(profile: Profile, budget_bytes: int) -> tuple[Plan, float]:
    began = time.process_time()
    plan = solve(profile, budget_bytes)
    return plan, time.process_time() - began


def _measured_table(found: list[dict[str, Any]]) -> str:
    plain = {row["model"]: row for row in found if row["way"] == "plain"}
    lines = [
        [
            row["model"],
            row["way"],
            *(f"{1e3 * row[each]:.1f}" for each in ("measured_seconds", "seconds")),
            *(f"{row[each] / plain[row['model']][each] - 1:+.1%}" for each in ("measured_seconds", "seconds")),
            *(f"{1e3 * row[each]:.1f}" for each in ("measured_host_seconds", "host_seconds", "host_pace_seconds")),
        ]
        for row in found
    ]
    heads = ["model", "recomputed by", "step, ms", "simulated", "over plain", "simulated", "host, ms", "simulated"]
    return table([*heads, "at the host's pace, ms"], lines)


def _chosen_table(found: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["model"],
            row["budget"],
            *(f"{row[each]:+.1%}" for each in ("every_block", "one_clock", "two_clocks")),
            f"{row['solving_before']:.2f} s",
            f"{row['solving']:.2f} s",
        ]
        for row in found
    ]
    return table(["model", "budget", "every block", "one clock", "two clocks", "solving, one", "solving, two"], lines)


if __name__ == "__main__":
    main()
