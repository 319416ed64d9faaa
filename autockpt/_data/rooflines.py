"""Devices whose roofline is known: for seconds that nothing has measured. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

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

    def scaled(self, by: float) -> HostCosts:
        """Return them times a factor."""
        return HostCosts(**{name: by * value for name, value in asdict(self).items()})


ON_CPU = HostCosts(
    replay_seconds=420e-6, member_seconds=86e-6, save_seconds=33e-6, kept_seconds=56e-6, mode_seconds=26e-6
)
"""On a core of an x86-64 server at 2 to 3 GHz: medians of steps whose operators had swept the caches."""


SHOWS_ON_A_DEVICE = 0.25
"""Share of these seconds that shows in the step of a device, which works meanwhile on what the host has queued.

Chosen, not measured; a stand-in for the longer of both. It ranks plans as one H100 did: there a Llama of 1 B (156 of
162 ms worked, the host busy for 110) took 206 ms with every block recomputed and the host 172; in another run, with 62
functions kept, which a mode must watch, 216.
"""


IDLE_HOST = "a device whose host has time to spare"
"""The device of profiles that are made by hand: recomputing costs what its operators do."""


def host_costs(device: str) -> HostCosts:
    """Return what recomputing costs the host of a device, by the name that a profile has for it."""
    if device == IDLE_HOST:
        return HostCosts()
    return ON_CPU if device == "cpu" else ON_CPU.scaled(SHOWS_ON_A_DEVICE)
