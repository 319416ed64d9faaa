"""Solve profiles with whatever autockpt this interpreter imports, on a clock of CPU seconds; a row a line, as JSON.

    python worker.py PROFILE BUDGET...      BUDGET: bytes, "min" (lowest of all), or "50%" of what the plain step adds

It imports nothing of the benchmarks, so that an environment with another version of autockpt can run it. What else the
machine does must not decide which plan is found: limits of time count the seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

_wall, _cpu = time.perf_counter, time.process_time


def main() -> None:
    count_cpu_seconds()
    import autockpt

    path, *budgets = sys.argv[1:]
    profile = autockpt.Profile.load(path)
    static_bytes = profile.static.total_bytes
    plain = autockpt.solve(profile, 2**62)  # everything is imported, and the backend is loaded
    for budget in budgets:
        asked: int | str = budget
        if budget.endswith("%"):
            asked = static_bytes + round(float(budget[:-1]) / 100 * (plain.peak_bytes - static_bytes))
        elif budget.isdigit():
            asked = int(budget)
        elif budget == "min":
            asked = word_for_lowest(profile)
        row: dict[str, Any] = {"budget": budget, "plain_bytes": plain.peak_bytes, "static_bytes": static_bytes}
        began = _cpu()
        try:
            plan = autockpt.solve(profile, asked)
            row |= {
                "peak_bytes": plan.peak_bytes,
                "recompute_seconds": plan.recompute_seconds,
                "plain_seconds": plan.plain_seconds,
                "gap": plan.gap,
                "choice_gap": plan.choice_gap,
            }
        except autockpt.Infeasible as error:
            row |= {"peak_bytes": None, "minimum_bytes": error.minimum_bytes}
        print(json.dumps(row | {"cpu_seconds": _cpu() - began}), flush=True)


def word_for_lowest(profile: Any) -> str:
    """Return the budget that asks for the lowest peak of all: versions before "lowest" called it "min"."""
    import autockpt

    try:
        autockpt.solve(profile, "lowest", solver="none")
    except autockpt.BudgetError:
        return "min"
    return "lowest"


def count_cpu_seconds() -> None:
    """Let the library read CPU seconds, and HiGHS, which has a clock of its own, stop when so many have passed."""
    import highspy

    wall, cpu, plain = _wall(), _cpu(), highspy.Highs.setOptionValue

    def set_option(self: Any, option: str, value: Any) -> Any:
        if option == "time_limit":
            value = float(value) * max(1.0, (_wall() - wall) / max(_cpu() - cpu, 1e-3))
        return plain(self, option, value)

    highspy.Highs.setOptionValue = set_option
    time.perf_counter = time.process_time


if __name__ == "__main__":
    main()
