"""autockpt: one profile a model, and a plan for each budget.

A budget counts parameters' gradients, where they are made in the step; the peaks that methods are compared at do not.
So the profile is of a step that finds gradients and adds to them, as in gradient accumulation: plans and peaks then
are about the same bytes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import autockpt
from autockpt import Infeasible, Plan, Profile
from benchmarks.frontier.measure import peak
from benchmarks.frontier.methods import Applied, Method
from benchmarks.frontier.peers import transformers
from tests.zoo import Case, loss_of

__all__ = ["OURS", "ours"]

OURS = "autockpt"
PERCENTS = (90, 80, 70, 60, 50, 40, 30, 20)
SWITCH, LEAST = "the switch's peak", "minimum"

Asked = Callable[[Case, Profile, int], Plan]
"""Makes the plan of a model from its profile and the bytes that its plain step adds, gradients left out."""


def ours() -> list[Method]:
    """Return our methods, which share a profile."""
    recording = Recording()
    asked: dict[str, Asked] = {f"{percent} %": functools.partial(_share, percent=percent) for percent in PERCENTS}
    return [
        Method(family=OURS, setting=setting, apply=functools.partial(planned, recording=recording, plan_of=plan_of))
        for setting, plan_of in {**asked, SWITCH: _as_the_switch, LEAST: _least}.items()
    ]


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
def planned(case: Case, *, recording: Recording, plan_of: Asked) -> Iterator[Applied]:
    """Train by the plan that is asked for."""
    profile, profile_seconds, plain_bytes = recording.of(case)
    static_bytes = profile.static.total_bytes
    began = time.perf_counter()
    plan = plan_of(case, profile, plain_bytes)
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


def _share(case: Case, profile: Profile, plain_bytes: int, *, percent: int) -> Plan:
    """Plan for so many percent of what the plain step adds."""
    return autockpt.solve(profile, profile.static.total_bytes + plain_bytes * percent // 100)


def _as_the_switch(case: Case, profile: Profile, plain_bytes: int) -> Plan:
    """Plan for the measured peak of transformers' own switch."""
    with transformers(case, every=1):
        case.step()
        stood = peak(case)
    return autockpt.solve(profile, profile.static.total_bytes + stood.activation_bytes)


def _least(case: Case, profile: Profile, plain_bytes: int) -> Plan:
    """Plan for the lowest peak that is found."""
    try:
        return autockpt.solve(profile, profile.static.total_bytes)
    except Infeasible as error:
        return autockpt.solve(profile, error.minimum_bytes)
