"""Devices whose roofline is known: for seconds that nothing has measured. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .devices import ALSO, DEVICES
from .devices import Roofline as Roofline

if TYPE_CHECKING:
    from ..profile import Profile

ROOFLINES: Mapping[str, Roofline] = {
    name: rates
    for name, full in {**{name: name for name in DEVICES}, **ALSO}.items()
    if (rates := DEVICES[full].roofline) is not None
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
    replay_seconds=840e-6, member_seconds=134e-6, save_seconds=35e-6, kept_seconds=55e-6, mode_seconds=2e-6
)
"""On a core of an x86-64 server, a slow one: a host that is twice as fast takes half.

Fitted to what 36 plans of six small transformers took over the plain step, beside what their operators do, with few and
with many units: 0.8 points of a step off in the median, 3.3 at worst.
"""


ON_A_DEVICE = HostCosts(
    replay_seconds=105e-6, member_seconds=21.5e-6, save_seconds=8.25e-6, kept_seconds=14e-6, mode_seconds=6.5e-6
)
"""What shows of it in the step of a device, which works meanwhile on what the host has queued, whatever the host.

Chosen, not measured: a quarter of what a CPU's host took for each, alone; a stand-in for the longer of both. It ranks
plans as one H100 did: there a Llama of 1 B (156 of 162 ms worked, the host busy for 110) took 206 ms with every block
recomputed and the host 172; in another run, with 62 functions kept, which a mode must watch, 216.
"""


IDLE_HOST = "a device whose host has time to spare"
"""The device of profiles that are made by hand: recomputing costs what its operators do."""


LAUNCHED_SECONDS = 100e-6
"""What the host of a device takes for an operator of forward and what backward makes of it, about.

Of two Llamas in eager mode on an H100, 110 and 62 ms for 2,695 and 1,662 kernels: 40 microseconds each, of which a step
has three for an operator of forward (`benchmarks/gpu/results`). Chosen below that, so that only clear cases are named.
"""


def host_seconds(profile: Profile) -> float:
    """Return what a host takes about to launch a step, of which a roofline knows nothing; 0 where a step was measured.

    Where that is more than the step's own seconds, the host sets the pace, and overheads of kernels say nothing.
    """
    return LAUNCHED_SECONDS * len(profile.ops) if profile.mode == "fake" else 0.0


def is_host_bound(profile: Profile) -> bool:
    """Whether the host of a device takes longer to launch a step than its kernels run, about."""
    return profile.plain_seconds < host_seconds(profile)


def host_costs(device: str, slowdown: float | None) -> HostCosts:
    """Return what recomputing costs the host of a device.

    Args:
        device: the name that a profile has for it.
        slowdown: how many times as long as that of `ON_CPU` the host takes; None where that is not known.
    """
    if device == IDLE_HOST:
        return HostCosts()
    return ON_CPU.scaled(slowdown or 1.0) if device == "cpu" else ON_A_DEVICE
