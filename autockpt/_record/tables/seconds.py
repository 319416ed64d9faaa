"""The times at which a step reached its markers, from runs that were timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""Kind and index of a marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """The times of the host of a device in a plain step.

    Attributes:
        at: seconds since the start of forward, by place: where calls begin and end, and where forward and backward do.
        discarded: why they do not count; empty if they do.
        alone: why host time is not modelled beside the device's, as with several streams. Empty if it is.
    """

    at: Mapping[Place, float]
    discarded: str = ""
    alone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The times of a plain step.

    Attributes:
        at: seconds since the start of forward, by place. Functions may be timed in another run, so only the seconds
            between begin and end of each function count.
        ops: seconds of each operator in the recorded run; only their ratios count.
        plain_seconds: seconds of the whole step.
        host: times of the device's host; None where they are not known.
        device_share: forward's seconds on a device whose host is ahead of it, over those of the plain step.
    """

    at: Mapping[Place, float]
    ops: tuple[float, ...]
    plain_seconds: float
    host: HostTimes | None = None
    device_share: float = 1.0

    def scaled(self, factor: float) -> Seconds:
        """Return the times of the same step, slower by a factor."""

        def slower(at: Mapping[Place, float]) -> dict[Place, float]:
            return {place: each * factor for place, each in at.items()}

        host = None if self.host is None else replace(self.host, at=slower(self.host.at))
        return replace(self, at=slower(self.at), plain_seconds=self.plain_seconds * factor, host=host)
