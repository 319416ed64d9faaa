"""autockpt: one profile a model, and a plan for each budget.

A budget counts parameters' gradients, where they are made in the step; the peaks that methods are compared at do not.
So the profile is of a step that finds gradients and adds to them, as in gradient accumulation: plans and peaks then
are about the same bytes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import autockpt
from autockpt import Infeasible, Plan, Profile
from benchmarks.frontier.measure import peak
from benchmarks.frontier.methods import Applied, Method
from tests.zoo import Case, loss_of

__all__ = ["OURS", "ours"]

OURS = "autockpt"
PERCENTS = (90, 80, 70, 60, 50, 40, 30, 20)


def ours() -> list[Method]:
    """Return our methods, which share a profile."""
    recording = Recording()
    found = []
    for percent in (*PERCENTS, None):
        setting = "minimum" if percent is None else f"{percent} %"
        way = functools.partial(planned, recording=recording, percent=percent)
        found.append(Method(family=OURS, setting=setting, apply=way))
    return found


class Recording:
    """A model's profile, recorded once, just before the first plan, with all gradients there already."""

    def __init__(self) -> None:
        self._found: tuple[Profile, float, int] | None = None

    def of(self, case: Case) -> tuple[Profile, float, int]:
        """Return profile, the seconds that it took, and the bytes that the plain step adds, gradients left out."""
        if self._found is None:
            for parameter in case.model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            began = time.perf_counter()
            profile = autockpt.profile(case.model, case.kwargs, loss=loss_of)
            profile_seconds = time.perf_counter() - began
            case.model.zero_grad()
            self._found = profile, profile_seconds, peak(case).activation_bytes
        return self._found


@contextmanager
def planned(case: Case, *, recording: Recording, percent: int | None) -> Iterator[Applied]:
    """Train inside so many percent of what the plain step adds, gradients left out; None is the least that can be."""
    profile, profile_seconds, plain_bytes = recording.of(case)
    static_bytes = profile.static.total_bytes
    began = time.perf_counter()
    plan = _least(profile) if percent is None else autockpt.solve(profile, static_bytes + plain_bytes * percent // 100)
    solve_seconds = time.perf_counter() - began
    autockpt.apply(case.model, plan=plan)
    try:
        facts = {
            "planning_seconds": profile_seconds + solve_seconds,
            "profile_seconds": profile_seconds,
            "solve_seconds": solve_seconds,
            "asked_ratio": ((plan.budget_bytes or 0) - static_bytes) / plain_bytes,
            "predicted_overhead": plan.recompute_overhead,
            "segments": len(plan.segments),
        }
        yield Applied(case=case, facts=facts)
    finally:
        autockpt.remove(case.model)


def _least(profile: Profile) -> Plan:
    try:
        return autockpt.solve(profile, profile.static.total_bytes)
    except Infeasible as error:
        return autockpt.solve(profile, error.minimum_bytes)
