"""Rows for a table: how is a step taken fastest on a device, and how large may its batch be. No torch.

profile ─▶ steps ─┬─▶ frontier, budgets: what each device has ─▶ the plan for each ─▶ ways, with that device's seconds
                  ├─▶ microbatches, plain and planned ──────────────────────────────────▲
                  └─▶ lowest plans, of the batch and of larger ones ─▶ their peaks at other sizes ─▶ largest batch
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .._choose.candidates import Candidates
from .._choose.candidates.from_plan import find_planned, planned_in
from .._choose.frontier import frontier
from .._choose.index.profile_index import Index
from .._choose.predict.peak_breakdown import peak_parts
from .._choose.replay_cost.two_clocks import TwoClocks
from .._choose.solve import choose
from .._data.frontier import Frontier
from .._data.goal import Asked, Goal
from .._data.hardware.devices import Gpu, gpu_of
from .._data.hardware.rooflines import host_seconds, is_host_bound
from .._data.offload import Offload
from .._data.plan import Plan
from .._data.profile import Profile
from .._data.text.document import Document
from .._data.timeline import PeakParts
from ..solvers import simulate
from .accumulated import floor_bytes, mixes_samples
from .sized import Batches
from .steps import Recorded, Steps
from .switches import Switch, switches
from .timed import is_carried
from .ways import StepWay, WaysAsked, splits_of, ways_of

SECONDS = 2.0
"""For the solver, for all devices together."""

LARGER = 4
"""A batch of so many times the samples gets a lowest plan of its own, since it peaks at other points of the step."""

LARGEST_SECONDS = 1.0
"""For the solver, to find that plan."""

BEND = 0.01
"""A peak bends where its slope over the samples changes by more than this share."""

MOST_SAMPLES = 2**20

Tell = Callable[[str], None]
"""Is told what goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """One device and one number of samples a step; everything is predicted.

    Attributes:
        gpu: its name in `DEVICES`, or an amount of memory.
        samples: of a step; None if the profile does not say.
        ways: to take the step: first those that can be recommended, the fastest first; then those that fit, and change
            the result; then those that do not fit.
        plan: the cheapest that was found for the whole step to fit at once; None if none fits.
        overhead: recompute seconds over the plain step's, on this device.
        clocks: where the time of the planned step goes there; None without a plan, and for a step with one clock.
        plain_seconds: those of the plain step.
        host_seconds: about what a host takes to launch the step; 0 if it was measured.
        minimum_bytes: the lowest peak of any plan that was found for the whole step.
        floor_bytes: what no way changes: static bytes, gradients and the optimizer's step, on the fewest samples.
        largest: about the most samples with which some plan fits at once; None if that is not known.
        largest_plain: the same for the plain step.
    """

    gpu: str
    samples: int | None
    ways: tuple[StepWay, ...]
    plan: Plan | None
    overhead: float
    clocks: TwoClocks | None
    plain_seconds: float
    host_seconds: float
    minimum_bytes: int
    floor_bytes: int
    largest: int | None
    largest_plain: int | None

    @property
    def device(self) -> Gpu:
        """The device."""
        return gpu_of(self.gpu)

    @property
    def timed(self) -> bool:
        """Whether seconds are this device's: not where only its memory is known."""
        return self.device.roofline is not None

    @property
    def best(self) -> StepWay | None:
        """The fastest way that fits and trains as the whole batch does; None if there is none."""
        return next((way for way in self.ways if way.is_good), None)

    @property
    def host_bound(self) -> bool:
        """Whether the host sets the pace, so that the overhead says nothing."""
        return self.plain_seconds < self.host_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRow:
    """A switch of another library on the first batch, beside what autockpt recomputes within the same peak.

    Attributes:
        switch: what it does, with seconds on `Fits.timed_for`.
        overhead: recompute seconds over the plain step's.
        ours: overhead of our plan within the peak of the switch; None if no plan of ours stays within it.
    """

    switch: Switch
    overhead: float
    ours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits(Document):
    """What was found.

    Attributes:
        profile: of the step on the first number of samples that was asked for.
        samples: how many the recorded batch has; None if that is not known.
        rows: by device, in the order asked for, and by samples a step.
        switches: those of other libraries, on the first samples, with the seconds of one device.
        timed_for: that device.
        host_bound: whether the host sets the pace on that device, so that overheads of the switches say nothing.
        by_roofline: whether seconds are those of each device; if not, all are those of the recorded device.
        mixes: whether a step normalizes by statistics of the whole batch, so that microbatches change the result.
        lowest: what the lowest peak of the whole step consists of; None if every device has room for it.
    """

    _repr_pretty_ = Document._repr_pretty_  # IPython would take the repr of the dataclass, which comes first

    PAGE: ClassVar[str] = "explain.fit.fit_page"
    BRIEF: ClassVar[str] = "explain.fit.brief_fit"

    profile: Profile
    samples: int | None
    rows: tuple[FitRow, ...]
    switches: tuple[SwitchRow, ...]
    timed_for: str
    host_bound: bool
    by_roofline: bool
    mixes: bool
    lowest: PeakParts | None

    @property
    def fits(self) -> bool:
        """Whether some device has a way to take the step that can be recommended."""
        return any(row.best is not None for row in self.rows)


def find_fits(
    profile: Profile,
    gpus: Sequence[str],
    *,
    sizes: Sequence[int] = (),
    recorded: Recorded | None = None,
    offload: str | None = None,
    tell: Tell = lambda what: None,
) -> Fits:
    """Find for each device the fastest way to take a step there, and how large its batch may be.

    Args:
        profile: of the step.
        gpus: names in `DEVICES`, or amounts of memory.
        sizes: numbers of samples a step to ask for; empty for those of the recorded one.
        recorded: records the step on other batches and for other devices; None to work both out from the profile.
        offload: where tensors may wait off the device; see `solve`.
        tell: is told what goes on.

    Heuristic: one search of `SECONDS` for each number of samples, and those of `ways_of`. For the largest batches, one
    more search for a lowest peak.
    """
    samples = profile.samples
    steps = Steps(profile, recorded)
    peaks = _Peaks(Batches.of(profile, samples), offload, tell) if samples else None
    asked = tuple(sizes) or (samples,)
    first = steps.at(gpus[0], asked[0])
    plain_switches, mixes = tuple(switches(first)), mixes_samples(profile)
    found, rows = list[list[Frontier]](), dict[tuple[str, int | None], FitRow]()
    for size in asked:
        which = f", {size} samples" if sizes[1:] else ""
        found.append([*_plans(steps.at(gpus[0], size), gpus, plain_switches, offload, tell, which)])
        tell(f"ways to take a step{which}")
        ways = _ways(steps, gpus, size, found[-1], mixes=mixes)
        rows |= {(gpu, size): _row(gpu, size, ways[gpu], found[-1][-1], peaks, steps) for gpu in gpus}
    ordered = [rows[gpu, size] for gpu in gpus for size in asked]
    timed_for = profile.device if profile.device in gpus else _first_planned(ordered) or profile.device
    timed, lowest = steps.at(timed_for, asked[0]), found[0][-1].plans[-1]
    return Fits(
        profile=first,
        samples=samples,
        rows=tuple(ordered),
        switches=tuple(_beside(timed, found[0][0]) if plain_switches else ()),
        timed_for=timed_for,
        host_bound=is_host_bound(timed),
        by_roofline=recorded is not None or is_carried(profile),
        mixes=mixes,
        lowest=_lowest(first, lowest) if any(row.device.usable_bytes < lowest.peak_bytes for row in ordered) else None,
    )


def _plans(
    step: Profile, gpus: Sequence[str], others: Sequence[Switch], offload: str | None, tell: Tell, which: str
) -> Iterator[Frontier]:
    """Yield the plans of a step for what each device has room for, and for the peak of each switch.

    Where tensors may wait off the device, the plans in which some do come behind those in which none does.
    """
    tell(f"plans for {len(gpus)} devices{which}")
    budgets = sorted({gpu_of(gpu).usable_bytes for gpu in gpus} | {each.peak_bytes for each in others})
    yield frontier(step, budgets=budgets, seconds=SECONDS)
    if offload is not None:
        yield frontier(step, budgets=budgets, seconds=SECONDS, offload=offload)


def _ways(
    steps: Steps, gpus: Sequence[str], size: int | None, found: Sequence[Frontier], *, mixes: bool
) -> dict[str, tuple[StepWay, ...]]:
    """Return the ways on each device, given the plans of the whole step. With several ranks none is in microbatches."""
    splits = [] if steps.at(gpus[0], size).is_shared else splits_of(size)
    usable = {gpu: gpu_of(gpu).usable_bytes for gpu in gpus}
    asked = WaysAsked(steps=steps, samples=size, usable=usable, splits=splits, mixes=mixes)
    return ways_of(asked, _those_that_fit(gpus, found))


def _those_that_fit(gpus: Sequence[str], found: Sequence[Frontier]) -> dict[str, list[Plan]]:
    """Return for each device the cheapest plan of each kind that fits; the one with the lowest peak where none does."""
    plans: dict[str, list[Plan]] = {}
    for gpu in gpus:
        chosen = [_within(each, gpu_of(gpu).usable_bytes) or each.plans[-1] for each in found]
        moves = [plan for plan in chosen[1:] if plan.offload is not None]  # else it is no other kind
        plans[gpu] = [plan for plan in (*chosen[:1], *moves) if plan.segments]
    return plans


def _within(plans: Frontier, usable: int) -> Plan | None:
    return next((plan for plan in plans.plans if plan.peak_bytes <= usable), None)


def _first_planned(rows: Sequence[FitRow]) -> str | None:
    """Return the first device that needs a plan, or else the first; None where only memory is known."""
    timed = [row for row in rows if row.timed]
    return next(
        (row.gpu for row in timed if row.plan is not None and row.plan.segments), timed[0].gpu if timed else None
    )


def _row(
    gpu: str,
    size: int | None,
    ways: tuple[StepWay, ...],
    plans: Frontier,
    peaks: _Peaks | None,
    steps: Steps,
) -> FitRow:
    """Return the row of one device and batch size, from the ways and plans that were found for it."""
    usable, own = gpu_of(gpu).usable_bytes, steps.at(gpu, size)
    plan = _within(plans, usable)
    planned = steps.planned(gpu, size, plan) if plan is not None and plan.segments else None
    # The largest batch is at least the one that was asked for, if that one fits.
    fitting, fitting_plain = size if plan is not None else 0, size if plan is not None and not plan.segments else 0
    lowest = plans.plans[-1]
    return FitRow(
        gpu=gpu,
        samples=size,
        ways=ways,
        plan=plan,
        overhead=0.0 if planned is None else _overhead(planned),
        clocks=None if planned is None else planned.clocks(range(len(planned.replays))),
        plain_seconds=own.plain_seconds,
        host_seconds=host_seconds(own),
        minimum_bytes=plans.minimum_bytes,
        floor_bytes=_floor_bytes(gpu, size, ways, steps),
        largest=max(peaks.largest(usable, lowest), fitting or 0) if peaks else None,
        largest_plain=max(largest(peaks.plain, usable), fitting_plain or 0) if peaks else None,
    )


def _floor_bytes(gpu: str, size: int | None, ways: Sequence[StepWay], steps: Steps) -> int:
    """Return what no way changes, on as few samples as some way takes at once."""
    split = max(way.microbatches for way in ways)
    fewest = size if size is None else size // split
    return floor_bytes(steps.later(gpu, fewest) if split > 1 else steps.at(gpu, fewest))


def _overhead(planned: Candidates) -> float:
    """Return what recomputing all candidates costs, as a share of the plain step."""
    return planned.all_seconds / planned.plain_seconds if planned.plain_seconds else 0.0


def _beside(priced: Profile, plans: Frontier) -> Iterator[SwitchRow]:
    """Put each switch, with the seconds of one device, beside our plan within the same peak."""
    for switch in switches(priced):
        ours = next((plan for plan in plans.plans if plan.peak_bytes <= switch.peak_bytes), None)
        yield SwitchRow(
            switch=switch,
            overhead=switch.recompute_seconds / switch.plain_seconds if switch.plain_seconds else 0.0,
            ours=None if ours is None else _overhead(find_planned(priced, ours)),
        )


def _lowest(profile: Profile, plan: Plan) -> PeakParts:
    """Return what the lowest peak consists of."""
    planned = find_planned(profile, plan)
    return peak_parts(planned, tuple(range(len(planned.replays))))


class _Peaks:
    """Peaks of one model's steps on batches of any size, under the plans that peak lowest at some of them."""

    def __init__(self, batches: Batches, offload: str | None, tell: Tell) -> None:
        self._batches, self._offload, self._tell = batches, Offload.read(offload), tell
        self.plain = functools.cache(lambda size: batches.at(size).plain_peak_bytes)
        self._laid_out = functools.cache(lambda size: Index(batches.at(size)))
        self._under: list[Callable[[int], int]] = []

    def largest(self, usable: int, lowest: Plan) -> int:
        """Return about the most samples that fit under the `lowest` plan of one batch, or under a larger one's."""
        if not self._under:
            self._tell("the largest batches")
            asked = Asked(goal=Goal(budget="min"), seconds=LARGEST_SECONDS, offload=self._offload)
            other = choose(self._batches.at(LARGER * self._batches.samples), asked, bounded=False)
            self._under = [functools.cache(functools.partial(self._peak, plan)) for plan in (lowest, other)]
        return max(largest(under, usable) for under in self._under)

    def _peak(self, plan: Plan, size: int) -> int:
        planned = planned_in(self._laid_out(size), plan)
        return simulate(planned.problem, range(len(planned.replays))).peak_bytes


def largest(peak_bytes: Callable[[int], int], usable: int) -> int:
    """Return a number of samples that fits, about the largest one; 0 if not even one sample fits.

    The size of a tensor is linear in the samples, or constant. So the peak is convex in the samples: between two
    numbers of samples it is not above the straight line through their peaks, and outside of them not below it.
    """
    fits, size = 0, 1
    while size <= MOST_SAMPLES and peak_bytes(size) <= usable:
        fits, size = size, 2 * size
    if not fits or size > MOST_SAMPLES:
        return fits
    rise = _rise(peak_bytes, fits, size)
    before = fits // 2
    if before and _rise(peak_bytes, before, fits) < (1 - BEND) * rise:  # a bend lies there, or just before
        most = size - math.ceil((peak_bytes(size) - usable) / _rise(peak_bytes, size, 2 * size))
        if fits < most < size and peak_bytes(most) <= usable:
            return most
    return fits + int((usable - peak_bytes(fits)) / rise)


def _rise(peak_bytes: Callable[[int], int], first: int, last: int) -> float:
    return (peak_bytes(last) - peak_bytes(first)) / (last - first)
