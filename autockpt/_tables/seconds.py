"""The times at which a step reached its markers, from runs that were timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""Kind and index of a marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The times of a plain step.

    Attributes:
        at: seconds since the start of forward, by place. Functions may be timed in another run, so only the seconds
            between begin and end of each function count.
        ops: seconds of each operator in the recorded run; only their ratios count.
        plain_seconds: seconds of the whole step.
    """

    at: Mapping[Place, float]
    ops: tuple[float, ...]
    plain_seconds: float

    def scaled(self, factor: float) -> Seconds:
        """Return the times of the same step, slower by a factor."""
        at = {place: each * factor for place, each in self.at.items()}
        return Seconds(at=at, ops=self.ops, plain_seconds=self.plain_seconds * factor)
