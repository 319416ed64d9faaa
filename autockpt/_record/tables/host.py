"""What the host of a device took, call by call."""

from __future__ import annotations

from collections.abc import Sequence

from ..._data.step.host_seconds import HostSeconds
from ..._data.step.tables import CallRecord
from .seconds import Seconds
from .tables import medians, rounded

SEVERAL_FORWARDS = "its step has several forwards, of which only the first was looked at"


def host_seconds_of(seconds: Seconds, calls: Sequence[CallRecord], *, one_forward: bool) -> HostSeconds | None:
    """Return the host's seconds in a plain step; None if nothing was measured.

    Calls with the same signature share the median of their times. Where the host's time is not modelled, or its times
    do not count, only the reason is returned.

    Args:
        seconds: what was measured.
        calls: the calls of the step.
        one_forward: whether no forward came after a backward.
    """
    times = seconds.host
    if times is None:
        return None
    if times.alone:
        return HostSeconds(alone=times.alone)
    if times.discarded or not one_forward:
        return HostSeconds(discarded=times.discarded or SEVERAL_FORWARDS)
    forward_seconds = max(times.at["forward_end", 0], 0.0)
    spans = (times.at["exit", number] - times.at["enter", number] for number in range(len(calls)))
    found = medians((min(max(each, 0.0), forward_seconds) for each in spans), [call.signature for call in calls])
    return HostSeconds(
        call_seconds=tuple(map(rounded, found)),
        forward_seconds=rounded(forward_seconds),
        backward_seconds=rounded(max(times.at["backward_end", 0] - times.at["forward_end", 0], 0.0)),
        device_share=seconds.device_share,
    )
