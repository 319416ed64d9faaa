"""Rows for a table: does a step fit a device, with which overhead, and how large may its batch be. No torch.

profile ─▶ batches ─▶ frontier, budgets: what each device has ─▶ the plan for each ─▶ seconds of that device
                 └──▶ lowest plans, of the batch and of larger ones ─▶ their peaks at other sizes ─▶ largest batch
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .._choose.candidates import Candidates
from .._choose.candidates.from_plan import find_planned
from .._choose.frontier import frontier
from .._choose.peak_breakdown import peak_parts
from .._choose.solve import choose
from .._data.devices import DEVICES, Gpu
from .._data.frontier import Frontier
from .._data.goal import Asked, Goal
from .._data.offload import Offload
from .._data.plan import Plan
from .._data.profile import Profile
from .._data.rooflines import host_seconds, is_host_bound
from .._data.timeline import PeakParts
from .._replays.two_clocks import TwoClocks
from ..solvers import simulate
from .sized import Batches
from .switches import Switch, switches
from .timed import carried, is_carried

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
class Row:
    """One device and one batch; everything is predicted.

    Attributes:
        gpu: its name in `DEVICES`.
        samples: of the batch; None if the profile does not say.
        plan: the cheapest that was found to fit; None if none fits.
        overhead: recompute seconds over the plain step's, on this device.
        clocks: where the time of the planned step goes there; None without a plan, and for a step with one clock.
        plain_seconds: those of the plain step.
        host_seconds: about what a host takes to launch the step; 0 if it was measured.
        minimum_bytes: the lowest peak of any plan that was found.
        largest: about the most samples with which some plan fits; None if that is not known.
        largest_plain: the same for the plain step.
    """

    gpu: str
    samples: int | None
    plan: Plan | None
    overhead: float
    clocks: TwoClocks | None
    plain_seconds: float
    host_seconds: float
    minimum_bytes: int
    largest: int | None
    largest_plain: int | None

    @property
    def device(self) -> Gpu:
        """The device."""
        return DEVICES[self.gpu]

    @property
    def host_bound(self) -> bool:
        """Whether the host sets the pace, so that the overhead says nothing."""
        return self.plain_seconds < self.host_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRow:
    """A switch of another library on the first batch, beside what autockpt recomputes within the same peak.

    Attributes:
        switch: what it does, with seconds on `Fit.timed_for`.
        overhead: recompute seconds over the plain step's.
        ours: overhead of our plan within the peak of the switch; None if no plan of ours stays within it.
    """

    switch: Switch
    overhead: float
    ours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was found.

    Attributes:
        profile: of the step on the first batch that was asked for.
        samples: how many the recorded batch has; None if that is not known.
        rows: by device, in the order asked for, and by batch.
        switches: on the first batch, with the seconds of one device.
        timed_for: that device.
        host_bound: whether the host sets the pace on that device, so that overheads of the switches say nothing.
        by_roofline: whether overheads are those of each device; if not, all are those of the recorded device.
        lowest: what the lowest peak of the first batch consists of; None if every device has room for it.
    """

    profile: Profile
    samples: int | None
    rows: tuple[Row, ...]
    switches: tuple[SwitchRow, ...]
    timed_for: str
    host_bound: bool
    by_roofline: bool
    lowest: PeakParts | None


def fit(
    profile: Profile,
    gpus: Sequence[str],
    *,
    samples: int | None = None,
    sizes: Sequence[int] = (),
    timed: Callable[[str], Profile] | None = None,
    offload: str | None = None,
    tell: Tell = lambda what: None,
) -> Fit:
    """Find for each device what a step costs there, and how large its batch may be.

    Args:
        profile: of the step.
        gpus: names in `DEVICES`.
        samples: how many the recorded batch has; None if that is not known.
        sizes: batches to ask for, in samples; empty for the recorded one.
        timed: returns the recorded step with the seconds of a device; None to carry the profile's own seconds there.
        offload: where tensors may wait off the device; see `solve`.
        tell: is told what goes on.

    Heuristic: one search of `SECONDS` for each batch. For the largest batches, one more search for a lowest peak.
    """
    batches = Batches.of(profile, samples) if samples else None
    peaks = _Peaks(batches, offload, tell) if batches else None
    priced = _priced(timed or functools.partial(carried, profile), samples)
    asked = tuple(sizes) or (samples,)
    steps = [_sized(profile, batches, size) for size in asked]
    plain_switches = tuple(switches(steps[0]))
    found = [
        _plans(step, gpus, plain_switches, offload, tell, f", {size} samples" if sizes[1:] else "")
        for size, step in zip(asked, steps, strict=True)
    ]
    rows = [_row(gpu, size, plans, peaks, priced) for gpu in gpus for size, plans in zip(asked, found, strict=True)]
    timed_for = profile.device if profile.device in gpus else _first_planned(rows)
    lowest = found[0].plans[-1]
    return Fit(
        profile=steps[0],
        samples=samples,
        rows=tuple(rows),
        switches=tuple(_beside(priced(timed_for, asked[0]), found[0]) if plain_switches else ()),
        timed_for=timed_for,
        host_bound=is_host_bound(priced(timed_for, asked[0])),
        by_roofline=timed is not None or is_carried(profile),
        lowest=_lowest(steps[0], lowest) if any(row.device.usable_bytes < lowest.peak_bytes for row in rows) else None,
    )


def _priced(seconds_of: Callable[[str], Profile], samples: int | None) -> Callable[[str, int | None], Profile]:
    """Return a function that gives the recorded step on another number of samples, with the seconds of a device."""

    @functools.cache
    def priced(gpu: str, size: int | None) -> Profile:
        found = seconds_of(gpu)
        return _sized(found, Batches.of(found, samples) if samples else None, size)

    return priced


def _sized(profile: Profile, batches: Batches | None, size: int | None) -> Profile:
    """Return the step on so many samples; the recorded one if either number is not known."""
    return batches.at(size) if batches and size else profile


def _plans(
    step: Profile, gpus: Sequence[str], others: Sequence[Switch], offload: str | None, tell: Tell, which: str
) -> Frontier:
    """Find the plans of a step for what each device has room for, and for the peak of each switch."""
    tell(f"plans for {len(gpus)} devices{which}")
    budgets = {DEVICES[gpu].usable_bytes for gpu in gpus} | {each.peak_bytes for each in others}
    return frontier(step, budgets=sorted(budgets), seconds=SECONDS, offload=offload)


def _first_planned(rows: Sequence[Row]) -> str:
    """Return the first device that needs a plan, or else the first."""
    return next((row.gpu for row in rows if row.plan is not None and row.plan.segments), rows[0].gpu)


def _row(
    gpu: str,
    size: int | None,
    plans: Frontier,
    peaks: _Peaks | None,
    priced: Callable[[str, int | None], Profile],
) -> Row:
    usable, own = DEVICES[gpu].usable_bytes, priced(gpu, size)
    plan = next((plan for plan in plans.plans if plan.peak_bytes <= usable), None)
    planned = find_planned(own, plan) if plan is not None and plan.segments else None
    fits, fits_plain = size if plan is not None else 0, size if plan is not None and not plan.segments else 0
    return Row(
        gpu=gpu,
        samples=size,
        plan=plan,
        overhead=0.0 if planned is None else _overhead(planned),
        clocks=None if planned is None else planned.clocks(range(len(planned.replays))),
        plain_seconds=own.plain_seconds,
        host_seconds=host_seconds(own),
        minimum_bytes=plans.minimum_bytes,
        largest=max(peaks.largest(usable, plans.plans[-1]), fits or 0) if peaks else None,
        largest_plain=max(largest(peaks.plain, usable), fits_plain or 0) if peaks else None,
    )


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
        self._profile = functools.cache(batches.at)
        self._under: list[Callable[[int], int]] = []

    def largest(self, usable: int, lowest: Plan) -> int:
        """Return about the most samples that fit under the `lowest` plan of one batch, or under a larger one's."""
        if not self._under:
            self._tell("the largest batches")
            # One level, as in the frontier beside it.
            asked = Asked(goal=Goal(budget="min"), seconds=LARGEST_SECONDS, offload=self._offload, below=False)
            other = choose(self._profile(LARGER * self._batches.samples), asked, bounded=False)
            self._under = [functools.cache(functools.partial(self._peak, plan)) for plan in (lowest, other)]
        return max(largest(under, usable) for under in self._under)

    def _peak(self, plan: Plan, size: int) -> int:
        planned = find_planned(self._profile(size), plan)
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
