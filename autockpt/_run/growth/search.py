"""The largest size whose predicted step fits a budget. No torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from ..._choose.candidates import Candidates, find_candidates
from ..._choose.candidates.profile_index import Index
from ..._choose.pins import pin
from ..._data.goal import Patterns, Pins
from ..._data.profile import Profile
from ...solvers import Infeasible, simulate
from ...solvers import solve as solve_problem
from .growth import Growth

SEARCH_SECONDS = 1.0
"""For a solver at one size; the plan that is wanted in the end has a search of its own."""

MOST_GUESSES = 5
"""After so many straight lines what is left is halved instead, which ends soon for certain."""

Name = tuple[tuple[str, ...], ...]
"""What a candidate stands for at every size: calls, and kept and skipped units."""


class Fitting:
    """Finds out what fits a budget, by plans that got low at other sizes before it asks a solver.

    Args:
        budget_bytes: highest peak of the whole step.
        solver: a name in ``autockpt.solvers.SOLVERS``.
        seconds: how long it may search in the end.
        keep: patterns of calls that must not run again.
        recompute: patterns of calls that must.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        solver: str,
        seconds: float,
        keep: Patterns = (),
        recompute: Patterns = (),
    ) -> None:
        self._budget_bytes, self._solver, self._seconds = budget_bytes, solver, seconds
        self._pins = Pins.of(keep, recompute)
        self._low: list[list[Name]] = []

    def largest(self, growth: Growth, fits: int, fits_not: int | None) -> int:
        """Return the largest size that fits, of one dimension.

        Args:
            growth: predicts the steps.
            fits: a size that does; 0 if none is known.
            fits_not: a larger one that does not, or is not wanted; None if none is known.

        The lowest peak rises nearly in a straight line with the size, so that few sizes are tried; at most
        O(log sizes), each with all candidates and a solver's search of a second. The first that does not fit then gets
        as long a search as the plan that is wanted in the end.
        """
        wanted = fits_not
        peaks = {size: self._peak_bytes(growth.at(size), budget_bytes=1) for (size,) in growth.sizes}
        for size, peak_bytes in peaks.items():
            if peak_bytes <= self._budget_bytes:
                fits = max(fits, size)
            elif fits < size:
                fits_not = size if fits_not is None else min(fits_not, size)
        while True:
            fits, fits_not = self._narrowed(growth, peaks, fits, fits_not)
            if fits_not == wanted or self._seconds <= SEARCH_SECONDS:
                return fits
            peaks[fits_not] = self._peak_bytes(growth.at(fits_not), seconds=self._seconds)
            if peaks[fits_not] > self._budget_bytes:
                return fits
            fits, fits_not = fits_not, wanted

    def _narrowed(self, growth: Growth, peaks: dict[int, int], fits: int, fits_not: int | None) -> tuple[int, int]:
        """Return a size that fits and the next, which does not; note the peak at each size that is tried."""
        guesses = 0
        while fits_not is None or fits_not - fits > 1:
            if fits_not is not None and guesses >= MOST_GUESSES:
                size = (fits + fits_not) // 2
            else:
                size = max(self._crossing(peaks), fits + 1)
                size = size if fits_not is None else min(size, fits_not - 1)
                guesses += 1
            peaks[size] = self._peak_bytes(growth.at(size))
            if peaks[size] <= self._budget_bytes:
                fits = size
            else:
                fits_not = size
        return fits, fits_not

    def _crossing(self, peaks: dict[int, int]) -> int:
        """Where the straight line through the sizes nearest to the budget meets it; twice as far if it never does."""
        sizes = sorted(peaks)
        above = next((i for i, size in enumerate(sizes) if peaks[size] > self._budget_bytes), len(sizes))
        first = min(max(above - 1, 0), len(sizes) - 2)
        one, other = sizes[first], sizes[first + 1]
        rise = peaks[other] - peaks[one]
        return one + (self._budget_bytes - peaks[one]) * (other - one) // rise if rise > 0 else 2 * other

    def _peak_bytes(self, profile: Profile, *, budget_bytes: int | None = None, seconds: float = SEARCH_SECONDS) -> int:
        """Return the peak of the first plan found within the budget, or of the lowest where none is."""
        budget_bytes = budget_bytes or self._budget_bytes
        candidates = pin(find_candidates(profile), self._pins)
        for plan in reversed(self._low):
            chosen = _indices(plan, candidates)
            if chosen is not None and (peak_bytes := simulate(candidates.problem, chosen).peak_bytes) <= budget_bytes:
                return peak_bytes
        try:
            solution = solve_problem(candidates.problem, budget_bytes, solver=self._solver, seconds=seconds)
            found: tuple[int, ...] | None = solution.chosen
            peak_bytes = solution.peak_bytes
        except Infeasible as error:
            found, peak_bytes = error.chosen, error.minimum_bytes
        if found is not None:
            self._low.append([_name(candidates, i) for i in found])
        return peak_bytes


def largest_plain(profile_at: Callable[[int], Profile], budget_bytes: int, most: int) -> int:
    """Return the largest size up to `most` whose plain step fits a budget; 0 where none does.

    O(log most) problems without candidates.
    """

    def peak_bytes(size: int) -> int:
        return simulate(Candidates.of(Index(profile_at(size)), ()).problem, ()).peak_bytes

    return bisect_right(range(1, most + 1), budget_bytes, key=peak_bytes)


def _name(candidates: Candidates, index: int) -> Name:
    """What a candidate stands for, whichever indices its calls have."""
    segment = candidates.replays[index].segment
    return segment.calls, segment.keep, segment.skip


def _indices(plan: list[Name], candidates: Candidates) -> list[int] | None:
    """Where the candidates of a plan stand; None where one is not offered."""
    place = {_name(candidates, i): i for i in range(len(candidates.replays))}
    chosen = [place[name] for name in plan if name in place]
    return chosen if len(chosen) == len(plan) else None
