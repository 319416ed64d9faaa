"""Steps recorded at some sizes, and the growths between them. No torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..._data.errors import GrowthError
from ..._data.profile import Profile
from .growth import Growth
from .structure import same_structure

FIRST_SIZES = (2, 4, 8)
"""Numbers of samples that are recorded until two of them do the same; a single one is a case of its own in many models
(a view in place of a copy)."""


class Recordings:
    """Steps recorded at some sizes, each once.

    Args:
        record: records a step of so many samples.
    """

    def __init__(self, record: Callable[[int], Profile]) -> None:
        self._record = record
        self._profiles: dict[int, Profile] = {}

    def at(self, size: int) -> Profile:
        """Return the recorded step of so many samples."""
        if size not in self._profiles:
            self._profiles[size] = self._record(size)
        return self._profiles[size]

    def below(self, size: int | None) -> list[int]:
        """Sizes that were recorded, below one if it is given, the largest first."""
        return sorted((each for each in self._profiles if size is None or each < size), reverse=True)

    def first_growth(self, most: int | None) -> Growth:
        """Record small sizes until two tell of others.

        Raises:
            GrowthError: no two do, or batches do not grow.
        """
        sizes = [size for size in FIRST_SIZES if most is None or size <= most]
        one, other = (self.at(size).static.input_bytes for size in sizes[:2])
        if one >= other:
            raise GrowthError(
                f"make_inputs({sizes[0]}) is {one:,} bytes of inputs and make_inputs({sizes[1]}) {other:,}; it has to "
                "make as many samples as it is asked for"
            )
        for size in sizes[1:-1]:
            with suppress(GrowthError):
                return self._between(size // 2, size)
        return self._between(sizes[-2], sizes[-1])

    def growths_to(self, size: int) -> list[Growth]:
        """Return the growth from the nearest smaller size of one structure to this one, if there is one.

        Where none of those recorded is of its structure, half the size is tried, and one sample less.
        """
        for other in (*self.below(size), size // 2, size - 1):
            if other > 1 and not same_structure(self.at(other), self.at(size)):
                return [self._between(other, size)]
        return []

    def _between(self, one: int, other: int) -> Growth:
        return Growth.of({one: self.at(one), other: self.at(other)})


def agree(predicted: Profile, recorded: Profile) -> bool:
    """Whether a prediction was right about the memory of a step."""
    return (
        not same_structure(predicted, recorded)
        and predicted.tensors == recorded.tensors
        and predicted.static == recorded.static
    )
