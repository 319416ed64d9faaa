"""Tensors that wait on the host: how fast they get there, what a plan that moves them costs, and is it exact."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

import autockpt
from autockpt import Infeasible, Plan, Profile
from benchmarks.gpu.rows import Figures, Job, NotHere
from benchmarks.gpu.steps import Setting, Subject, pairs, peak, planned, record, subject, verdict

__all__ = ["moves", "rows"]

MODELS = ("llama-100m", "llama-1b", "gpt2-large")
SHARE = 0.5
"""Of what the plain step adds to what is there: the budget."""

TURNS = {"full": 2, "tiny": 1}


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return a row for each model."""
    return [Job(name=f"moves: {name}", run=partial(moves, name, setting, folder), process=name) for name in MODELS]


def moves(name: str, setting: Setting, folder: Path) -> Iterator[Figures]:
    """Compare a plan that recomputes alone, one that moves as well, and the same one with a step that waits for it."""
    if setting.device.type == "cpu":
        raise NotHere("tensors of a CPU are on the host already")
    of = subject(name, setting)
    profile, _, _ = record(of)
    static_bytes = profile.static.total_bytes
    budget_bytes = static_bytes + round(SHARE * (profile.plain_peak_bytes - static_bytes))
    plans = {
        "recompute": _solved(profile, budget_bytes, setting, None),
        "moves": _solved(profile, budget_bytes, setting, "host"),
        "moves, at any price": _solved(profile, budget_bytes, setting, "host@1000GB/s"),
    }
    kept = {key: plan for key, plan in plans.items() if plan is not None}
    if (given := kept.get("moves, at any price")) is not None:
        waiting = [msgspec.structs.replace(segment, until=None) for segment in given.segments]
        kept["the same, waited for"] = msgspec.structs.replace(given, segments=tuple(waiting))
    rates = profile.offload
    yield (
        "predicted",
        {
            "budget_bytes": budget_bytes,
            "there, bytes a second": None if rates is None else rates.write_rate,
            "back, bytes a second": None if rates is None else rates.read_rate,
            **{f"{key}: overhead": plan.recompute_overhead for key, plan in kept.items()},
            **{f"{key}: moved bytes": sum(each.moved_bytes for each in plan.segments) for key, plan in kept.items()},
            **{f"{key}: peak_bytes": plan.timeline(profile).peak_bytes for key, plan in kept.items()},
        },
    )
    for key, plan in kept.items():
        plan.save(folder / f"{name}-{key.replace(', ', '-').replace(' ', '-')}.json")
        yield "measured", {f"{key}: {figure}": value for figure, value in _measured(of, profile, plan, setting).items()}


def _solved(profile: Profile, budget_bytes: int, setting: Setting, offload: str | None) -> Plan | None:
    try:
        return autockpt.solve(profile, budget_bytes, seconds=setting.search_seconds, offload=offload)
    except Infeasible:
        return None


def _measured(of: Subject, profile: Profile, plan: Plan, setting: Setting) -> dict[str, object]:
    with planned(of, plan) as step:
        step()  # which compares every replay
        found: dict[str, object] = {**peak(of, profile, step)}
    found |= pairs(of, partial(planned, of, plan), TURNS[setting.size])
    return found | verdict(of, plan)
