"""What is predicted of a step on two clocks, the host's and the device's, without its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autockpt import Plan, Profile
from autockpt._choose.candidates.from_plan import find_planned
from autockpt._choose.replay_cost.two_clocks import simulate
from autockpt._data.hardware.paces import H100_HOST, host_mode
from benchmarks.two_clocks.fit import TORCH

__all__ = ["on_two_clocks", "their_overhead"]


def on_two_clocks(profile: Profile, plans: Mapping[str, Plan | None]) -> dict[str, Any]:
    """Return seconds of the step, of its host and at the host's pace, by what recomputes; none for one clock.

    Args:
        profile: of the step.
        plans: by name; None is the plain step.
    """
    found: dict[str, Any] = {"host's seconds": host_mode(profile) or "assumed"}
    for name, plan in plans.items():
        planned = find_planned(profile, plan or Plan())
        if (clocks := planned.clocks(range(len(planned.replays)))) is None:
            return {}
        found[f"{name}: step without optimizer, seconds"] = clocks.step_seconds
        found[f"{name}: its host, seconds"] = clocks.host_seconds
        found[f"{name}: at the host's pace, seconds"] = clocks.host_pace_seconds
    return found


def their_overhead(profile: Profile, blocks: Plan) -> dict[str, float]:
    """Return what torch's checkpoint on every block is predicted to cost over the plain step; none for one clock."""
    planned = find_planned(profile, blocks)
    if planned.paces is None:
        return {}
    host, device = planned.paces
    slower = host.costs.replay_seconds / H100_HOST.costs.replay_seconds
    theirs = replace(host, costs=TORCH.scaled(slower))
    step, plain = (simulate(planned.index, each, theirs, device) for each in (planned.replays, ()))
    return {"their overhead": step.step_seconds / plain.step_seconds - 1}
