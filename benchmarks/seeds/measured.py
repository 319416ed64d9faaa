"""What is measured on this CPU: plain and planned steps in turns in one process, each plan fixed before it runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import torch

import autockpt
from autockpt import Plan, Profile
from autockpt._choose.candidates.from_plan import find_planned
from autockpt.solvers import simulate
from benchmarks.frontier.measure import peak, times
from benchmarks.models import build
from benchmarks.seeds.models import ConvolutionalChain, MicroBatches
from benchmarks.seeds.predicted import UNLIMITED, Figures, lowest_with
from tests.zoo import Case, loss_of

__all__ = ["MODES", "chen", "openai", "openai_speed", "torchgpipe"]

SECONDS, LEAST_PAIRS = 12.0, 7
"""How long each plan is timed beside the plain step, and over how many pairs at least."""

SHALLOW, DEEP, CHANNELS, IMAGES = 6, 60, 16, 16
PARTS = 4
"""Micro-batches of a batch."""

Found = Iterator[Figures]
"""First what is predicted, then what is measured."""


def recorded(case: Case) -> Profile:
    """Record a step that finds gradients and adds to them: peaks are those of `peak`, which leaves gradients out.

    Of two recordings the one counts in which the host was faster: other processes share the machine.
    """
    found = []
    for _ in range(2):
        for parameter in case.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        found.append(autockpt.profile(case.model, case.kwargs, loss=loss_of))
        case.model.zero_grad()
    return min(found, key=lambda profile: profile.host_slowdown or math.inf)


@contextmanager
def trained_by(plan: Plan, case: Case) -> Iterator[None]:
    """Train a case by a plan until the context ends."""
    autockpt.apply(case.model, plan=plan)
    try:
        case.step()  # the rehearsal
        yield
    finally:
        autockpt.remove(case.model)


def beside(plain: Case, case: Case, plan: Plan, key: str = "") -> Figures:
    """Measure a plan: what its step adds over what the plain one adds, and how much longer it takes."""
    with trained_by(plan, case):
        adds = peak(case).activation_bytes
        timed = times(plain, case, seconds=SECONDS, least_pairs=LEAST_PAIRS)
    ended = f"_{key}" if key else ""
    return {
        f"added_bytes{ended}": adds,
        f"measured_share{ended}": adds / peak(plain).activation_bytes,
        f"measured_overhead{ended}": timed.ratio - 1,
        f"quartiles{ended}": [each - 1 for each in timed.quartiles],
        f"pairs{ended}": timed.pairs,
    }


def chain(blocks: int) -> Case:
    """Build a chain of residual blocks, the same each time."""
    torch.manual_seed(0)
    return Case(ConvolutionalChain(blocks, CHANNELS).train(), {"images": torch.randn(IMAGES, 3, 32, 32)})


def twice(make: Callable[[], Case]) -> tuple[Case, Case]:
    """Build a plain case and one for plans; what is allocated once is allocated then."""
    plain, case = make(), make()
    for each in (plain, case):
        each.step()
    return plain, case


def openai() -> Found:
    """A chain ten times as deep, within what the shallow one's plain step adds."""
    shallow = chain(SHALLOW)
    shallow.step()
    budget_bytes = peak(shallow).activation_bytes
    plain, case = twice(functools.partial(chain, DEEP))
    profile = recorded(case)
    plan = autockpt.solve(profile, profile.static.total_bytes + budget_bytes)
    forward_share = sum(profile.ops.seconds) / profile.plain_seconds
    yield {"times": DEEP / SHALLOW, "budget_bytes": budget_bytes, "forward_share": forward_share}
    yield {"predicted_overhead": plan.recompute_overhead}
    yield beside(plain, case, plan)


def chen() -> Found:
    """A deep chain at their share of what the plain step adds, and what their own algorithm comes to there."""
    plain, case = twice(functools.partial(chain, DEEP))
    profile = recorded(case)
    budget_bytes = profile.static.total_bytes + peak(plain).activation_bytes * 7 // 48
    plan, theirs = (autockpt.solve(profile, budget_bytes, solver=solver) for solver in ("auto", "sqrt"))
    yield {"predicted_overhead": plan.recompute_overhead, "predicted_overhead_sqrt": theirs.recompute_overhead}
    yield {**beside(plain, case, plan), **beside(plain, case, theirs, "sqrt")}


def openai_speed() -> Found:
    """The lowest peak of `speed` on a small GPT-2, and our own plan for the same peak."""
    plain, case = twice(functools.partial(build, "gpt2"))
    profile = recorded(case)
    plan = lowest_with(profile, "speed")
    ours = autockpt.solve(profile, plan.peak_bytes)
    yield {"predicted_overhead": plan.recompute_overhead, "predicted_overhead_ours": ours.recompute_overhead}
    yield {**beside(plain, case, plan), **beside(plain, case, ours, "ours")}


def by_solver(solver: str, profile: Profile) -> Plan:
    """Return the plan of a solver that looks at no budget."""
    return autockpt.solve(profile, UNLIMITED, solver=solver)


def but_the_last_part(profile: Profile) -> Plan:
    """Return the plan of `all` without its segments in the last micro-batch."""
    plan, last = by_solver("all", profile), f"#{PARTS - 1}"
    kept = tuple(each for each in plan.segments if not each.calls[0].partition("/")[0].endswith(last))
    seconds = sum(each.recompute_seconds for each in kept)
    return msgspec.structs.replace(plan, segments=kept, recompute_seconds=seconds)


MODES: Mapping[str, Callable[[Profile], Plan]] = {
    "always": functools.partial(by_solver, "all"),
    "except_last": but_the_last_part,
    "never": functools.partial(by_solver, "none"),
}
"""torchgpipe's modes, each by what makes its plan: a mode that is a solver is a line here."""


def peak_under(profile: Profile, plan: Plan) -> int:
    """Predict the peak of a plan whose segments were chosen by hand."""
    planned = find_planned(profile, plan)
    return simulate(planned.problem, range(len(planned.replays))).peak_bytes


def micro_batches() -> Case:
    """Build a small GPT-2 whose batch of eight comes in parts."""
    case = build("gpt2")
    batch = {name: torch.cat([value] * 2) for name, value in case.kwargs.items()}
    return Case(MicroBatches(case.model, PARTS), batch)


def torchgpipe() -> Found:
    """Its three modes on micro-batches of one device, and ours within the peak of each that recomputes."""
    plain, case = twice(micro_batches)
    profile = recorded(case)
    plans = {mode: make(profile) for mode, make in MODES.items()}
    yield {f"predicted_overhead_{mode}": plan.recompute_overhead for mode, plan in plans.items()}
    found: Figures = {}
    for mode, plan in plans.items():
        if plan.segments:
            found |= beside(plain, case, plan, mode)
            ours = autockpt.solve(profile, peak_under(profile, plan))
            yield {f"predicted_overhead_ours_{mode}": ours.recompute_overhead}
            found |= beside(plain, case, ours, f"ours_{mode}")
    yield found
