"""The largest size whose step fits a budget: a secant over fake recordings, confirmed by measured ones.

peak bytes  │            ╱ fake × (measured over fake)
budget ─────┼───────●───╱
            │      ╱
            └──────┴──────── samples
"""

from __future__ import annotations

from collections.abc import Callable

FIRST_SIZES = (2, 4)
"""Where the secant begins. Not at a single sample: many models treat that differently (a view in place of a copy)."""

MOST_GUESSES = 6
"""After so many secant steps the search bisects instead, which is sure to end soon."""

MOST_TRIES = 4
"""Most measured recordings, if each contradicts the fake ones scaled by the one before."""

BytesAt = Callable[[int], int]


def largest(fake_bytes: BytesAt, measured_bytes: BytesAt, budget_bytes: int, most: int | None) -> int:
    """Return the largest size that fits.

    Args:
        fake_bytes: peak of a step of so many samples, by a fake recording; it rises with the size.
        measured_bytes: the same, by a measured recording.
        budget_bytes: the highest peak allowed.
        most: no larger size is wanted; None for any.

    Returns:
        A size that fits as measured; a fake recording of one more, scaled by measured over fake at this size, does not
        fit. 0 where not even one sample fits.

    Heuristic; O(log size) fake recordings, and mostly two measured, one of them of a few samples.
    """
    first = FIRST_SIZES[0] if most is None else min(FIRST_SIZES[0], most)
    factor, fits, measured = measured_bytes(first) / fake_bytes(first), 0, set[int]()
    for _ in range(MOST_TRIES):
        size = _crossing(fake_bytes, budget_bytes / factor, fits, most)
        if size == 0 or size in measured:
            break
        measured.add(size)
        peak_bytes = measured_bytes(size)
        factor = peak_bytes / fake_bytes(size)
        if peak_bytes <= budget_bytes:
            fits = max(fits, size)
        else:
            most = size - 1
    return fits


def _crossing(peak_bytes: BytesAt, budget_bytes: float, fits: int, most: int | None) -> int:
    """Return the largest size that fits by `peak_bytes`, and at least `fits`, which is known to fit."""
    fits_not = None if most is None else most + 1
    peaks: dict[int, int] = {}
    for guess in range(10**6):
        if fits_not is not None and fits_not - fits <= 1:
            return fits
        untried = [size for size in FIRST_SIZES if size not in peaks]
        if untried and (fits_not is None or untried[0] < fits_not) and untried[0] > fits:
            size = untried[0]  # small sizes first, through whose peaks a line can be drawn
        elif fits_not is not None and (guess >= MOST_GUESSES or len(peaks) < 2):
            size = (fits + fits_not) // 2  # there is no line, or it does not close in: halve
        else:  # where the line meets the budget; twice the size as long as there is none
            size = max(_secant(peaks, budget_bytes) if len(peaks) > 1 else 2 * max(fits, 1), fits + 1)
            size = size if fits_not is None else min(size, fits_not - 1)
        peaks[size] = peak_bytes(size)
        if peaks[size] <= budget_bytes:
            fits = size
        else:
            fits_not = size
    return fits


def _secant(peaks: dict[int, int], budget_bytes: float) -> int:
    """The size where the line through the sizes nearest to the budget meets it; twice as large if it never does."""
    sizes = sorted(peaks)
    above = next((i for i, size in enumerate(sizes) if peaks[size] > budget_bytes), len(sizes))
    first = min(max(above - 1, 0), len(sizes) - 2)
    one, other = sizes[first], sizes[first + 1]
    rise = (peaks[other] - peaks[one]) / (other - one)
    return int(one + (budget_bytes - peaks[one]) / rise) if rise > 0 else 2 * other
