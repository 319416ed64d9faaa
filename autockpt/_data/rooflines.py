"""Devices whose roofline is known: for seconds that nothing has measured. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .devices import ALSO, DEVICES
from .devices import Roofline as Roofline

ROOFLINES: Mapping[str, Roofline] = {
    **{name: gpu.roofline for name, gpu in DEVICES.items()},
    **{name: DEVICES[full].roofline for name, full in ALSO.items()},
}

DEFAULT_DEVICE = "a100"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Host seconds of recomputing, beside those of the operators, forward and backward together.

    Attributes:
        replay_seconds: of a replayed segment.
        member_seconds: of each of its calls but the first.
        save_seconds: of each tensor that is saved in it, parameters left out, whether or not a replay does so again:
            what a unit keeps for backward is packed and handed back too.
        kept_seconds: of a kept or skipped unit inside it, beside what that saves.
        mode_seconds: of a call that a function mode watches, and again of each function and call inside it.
    """

    replay_seconds: float = 0.0
    member_seconds: float = 0.0
    save_seconds: float = 0.0
    kept_seconds: float = 0.0
    mode_seconds: float = 0.0


ON_CPU = HostCosts(
    replay_seconds=420e-6, member_seconds=86e-6, save_seconds=33e-6, kept_seconds=56e-6, mode_seconds=26e-6
)
"""On a core of an x86-64 server at 2 to 3 GHz: medians of steps whose operators had swept the caches."""


def host_costs(device: str) -> HostCosts:
    """Return what recomputing costs the host of a device, by the name that a profile has for it.

    Other devices work on what the host has queued while it prepares a replay, and wait only where they run dry.
    """
    return ON_CPU if device == "cpu" else HostCosts()
