"""The ways to take a step of so many samples on a device: at once or in microbatches, plain or under a plan. No torch.

one step of 8 samples    ├──────── 8 ────────┤             plain, a plan, a plan that moves tensors
                         ├─── 4 ───┼─── 4 ───┤             plain, a plan
                         ├─ 2 ┼─ 2 ┼─ 2 ┼─ 2 ┤             plain, a plan        ... each split that divides

Seconds are those of a step on a microbatch, on two clocks where it has two, so they count what the host takes to launch
it. Gradients stand from the first microbatch on, and later ones add to them. The optimizer steps once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .._choose.candidates import Candidates
from .._choose.candidates.from_plan import find_planned
from .._choose.frontier import frontier
from .._choose.replay_cost.two_clocks import Launches
from .._choose.replay_cost.two_clocks import simulate as simulate_clocks
from .._data.hardware.paces import DevicePace, HostPace, paces_of
from .._data.plan import Plan
from .._data.profile import Profile
from ..solvers.common import judged
from .accumulated import adding, floor_bytes
from .steps import Steps

MOST_SPLITS = 16
"""So many splits of a step are looked at, those into the fewest microbatches."""

SECONDS = 1.0
"""For the solver, for the plans of one split on all devices together."""

DIGITS = 6
"""Steps whose seconds are equal to so many digits take equally long: then the one in fewer microbatches is first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWay:
    """One way to take a step; everything is predicted.

    Attributes:
        microbatches: how many the step is taken in.
        samples: of one microbatch; None if that is not known.
        plan: what is recomputed or moved in each; None for nothing.
        peak_bytes: of the whole step.
        seconds: of the whole step, without the optimizer's; on another device's clock where `FitRow.timed` is False.
        fits: whether the device has memory for it.
        same_result: whether it trains as the whole batch does: not where a microbatch is normalized by itself.
    """

    microbatches: int
    samples: int | None
    plan: Plan | None
    peak_bytes: int
    seconds: float
    fits: bool
    same_result: bool = True

    @property
    def kind(self) -> str:
        """``plain``, ``planned``, or ``offloaded`` for a plan that moves tensors."""
        if self.plan is None:
            return "plain"
        return "offloaded" if self.plan.offload is not None else "planned"

    @property
    def samples_per_second(self) -> float | None:
        """Samples that go through in a second of training; None where samples or seconds are not known."""
        return self.microbatches * self.samples / self.seconds if self.samples and self.seconds else None

    @property
    def is_good(self) -> bool:
        """Whether it can be recommended."""
        return self.fits and self.same_result


@dataclass(frozen=True, slots=True, kw_only=True)
class FitClock:
    """How long steps of one model take on one device.

    Attributes:
        paces: of host and device; None for a step with one clock.
        measured: what a measured step took, over what it takes on two clocks; 1 where none ran.
        added: the kernels that add gradients to those of earlier microbatches.
    """

    paces: tuple[HostPace, DevicePace] | None
    measured: float
    added: Launches

    @classmethod
    def of(cls, plain: Candidates) -> FitClock:
        """Find it from the recorded step with the seconds of the device, and no plan."""
        profile = plain.index.profile
        paces = paces_of(profile)
        if paces is None:
            return cls(paces=None, measured=1.0, added=adding(profile, 0.0))
        seconds = simulate_clocks(plain.index, (), *paces).step_seconds
        ran = profile.mode == "measured" and seconds
        added = adding(profile, paces[0].backward_seconds)
        return cls(paces=paces, measured=profile.plain_seconds / seconds if ran else 1.0, added=added)

    def seconds(self, planned: Candidates, microbatches: int = 1) -> float:
        """Return the seconds of a step in so many microbatches that recomputes all candidates in each. O(kernels)."""
        profile, chosen = planned.index.profile, range(len(planned.replays))
        if self.paces is None:
            more = planned.judged(judged(planned.problem, chosen, solver="manual")).recompute_seconds
            return microbatches * (profile.plain_seconds + more) + (microbatches - 1) * self.added.device_seconds
        if planned.offload is not None:  # whose copies are known on the device's clock alone
            more = planned.judged(judged(planned.problem, chosen, solver="manual")).recompute_seconds
            alone = self.measured * simulate_clocks(planned.index, (), *self.paces).step_seconds
            return alone * (1 + more / profile.plain_seconds) if profile.plain_seconds else alone
        first = simulate_clocks(planned.index, planned.replays, *self.paces).step_seconds
        if microbatches == 1:
            return self.measured * first
        others = simulate_clocks(planned.index, planned.replays, *self.paces, more=[self.added]).step_seconds
        return self.measured * (first + (microbatches - 1) * others)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaysAsked:
    """What ways are asked for.

    Attributes:
        steps: of the model.
        samples: of the whole step; None if that is not known.
        usable: bytes of each device, by name.
        splits: into how many microbatches the step may be taken, besides 1.
        mixes: whether accumulation changes the result.
    """

    steps: Steps
    samples: int | None
    usable: Mapping[str, int]
    splits: Sequence[int]
    mixes: bool

    def whole(self, gpu: str, plan: Plan) -> Candidates:
        """Return the step on all samples at once under a plan."""
        return self.steps.planned(gpu, self.samples, plan)

    def micro(self, gpu: str, split: int) -> Profile:
        """Return the step of a later microbatch."""
        assert self.samples is not None  # else there are no splits
        return self.steps.later(gpu, self.samples // split)


def splits_of(samples: int | None) -> list[int]:
    """Return into how many equal microbatches samples can be split, besides 1: the fewest, `MOST_SPLITS` at most."""
    return [each for each in range(2, (samples or 1) + 1) if samples and samples % each == 0][:MOST_SPLITS]


def ways_of(asked: WaysAsked, plans: Mapping[str, Sequence[Plan]]) -> dict[str, tuple[StepWay, ...]]:
    """Return the ways on each device: first those that can be recommended, the fastest first.

    Args:
        asked: what is asked for.
        plans: for each device those for the whole step that fit it, or would be the nearest.

    Heuristic as the solver is; a search of `SECONDS` for each split that needs a plan somewhere.
    """
    clocks = {gpu: FitClock.of(asked.steps.planned(gpu, None, Plan())) for gpu in asked.usable}
    found: dict[str, list[StepWay]] = {}
    for gpu, clock in clocks.items():
        found[gpu] = [_way(asked, clock, gpu, 1, asked.whole(gpu, plan), plan) for plan in (Plan(), *plans[gpu])]
        found[gpu] += _accumulated(asked, clock, gpu)
    for split, gpus in _to_plan(asked, found).items():
        for gpu, plan in _planned(asked, split, gpus):
            planned = find_planned(asked.micro(gpu, split), plan)
            found[gpu].append(_way(asked, clocks[gpu], gpu, split, planned, plan))
    return {gpu: tuple(sorted(ways, key=_rank)) for gpu, ways in found.items()}


def _accumulated(asked: WaysAsked, clock: FitClock, gpu: str) -> Iterator[StepWay]:
    """Yield the ways in plain microbatches, the fewest first, up to one that fits: more take more launches for nothing.

    Each is a step that is recorded, which takes seconds for a large model.
    """
    for split in asked.splits:
        way = _way(asked, clock, gpu, split, find_planned(asked.micro(gpu, split), Plan()), Plan())
        yield way
        if way.fits:
            return


def _way(asked: WaysAsked, clock: FitClock, gpu: str, split: int, planned: Candidates, plan: Plan) -> StepWay:
    peak_bytes = judged(planned.problem, range(len(planned.replays)), solver="manual").peak_bytes
    return StepWay(
        microbatches=split,
        samples=None if asked.samples is None else asked.samples // split,
        plan=plan if plan.segments else None,
        peak_bytes=peak_bytes,
        seconds=clock.seconds(planned, split),
        fits=peak_bytes <= asked.usable[gpu],
        same_result=split == 1 or not asked.mixes,
    )


def _rank(way: StepWay) -> tuple[bool, bool, float, int]:
    """Return what ways are sorted by."""
    return not way.is_good, not way.fits, float(f"{way.seconds:.{DIGITS}g}"), way.microbatches


def _to_plan(asked: WaysAsked, found: Mapping[str, Sequence[StepWay]]) -> dict[int, list[str]]:
    """Return which splits get plans, and for which devices: up to three of those that fit only under one.

    These are the one into the fewest microbatches, the one into the most, and one between.
    """
    wanted: dict[int, list[str]] = {}
    for gpu, ways in found.items():
        plain = [way.microbatches for way in ways if way.plan is None and way.microbatches > 1 and not way.fits]
        need = [split for split in plain if floor_bytes(asked.micro(gpu, split)) <= asked.usable[gpu]]
        for split in sorted({need[0], need[len(need) // 2], need[-1]} if need else ()):
            wanted.setdefault(split, []).append(gpu)
    return wanted


def _planned(asked: WaysAsked, split: int, gpus: Sequence[str]) -> Iterator[tuple[str, Plan]]:
    """Yield for each device the cheapest plan that fits each microbatch of a split there, if any does."""
    step = asked.micro(gpus[0], split)
    plans = frontier(step, budgets=sorted({asked.usable[gpu] for gpu in gpus}), seconds=SECONDS).plans
    for gpu in gpus:
        plan = next((plan for plan in plans if plan.peak_bytes <= asked.usable[gpu]), None)
        if plan is not None and plan.segments:
            yield gpu, plan
