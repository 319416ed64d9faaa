"""How fast a host launches and a device computes, for steps on two clocks (`_replays/two_clocks.py`). No torch.

A pace is a set of constants. Those of one H100 and its host are measured (`benchmarks/two_clocks`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .rooflines import HostCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPace:
    """What the host of a device takes, in seconds.

    Attributes:
        forward_seconds: to launch a kernel in forward or in a replay: Python, the router of operators, the launch.
        backward_seconds: to launch a kernel of backward, where no Python runs.
        forward_kernels: kernels of an operator of forward.
        backward_kernels: kernels of backward for each kernel of forward.
        costs: what the host does beside launching, where something is recomputed.
        optimizer_seconds: to launch the optimizer's step; 0 for a step without.
        optimizer_kernels: kernels of that.
        compared_kernels: kernels for each saved tensor of a segment whose replay is compared, in forward and again in
            the replay.
    """

    forward_seconds: float
    backward_seconds: float
    forward_kernels: float = 1.12
    backward_kernels: float = 2.2
    costs: HostCosts = field(default_factory=HostCosts)
    optimizer_seconds: float = 0.0
    optimizer_kernels: int = 0
    compared_kernels: float = 0.0

    def scaled(self, by: float) -> HostPace:
        """Return the pace of a host that takes so many times as long for everything."""
        return replace(
            self,
            forward_seconds=self.forward_seconds * by,
            backward_seconds=self.backward_seconds * by,
            costs=self.costs.scaled(by),
            optimizer_seconds=self.optimizer_seconds * by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePace:
    """What a device takes.

    Attributes:
        slowdown: seconds of forward's operators over those of the profile.
        backward_slowdown: the same of backward.
        gap_seconds: between two kernels, also where both are queued.
        optimizer_seconds: of the optimizer's step; 0 for a step without.
        compared_bytes_per_second: at which a comparison reads saved tensors.
    """

    slowdown: float = 1.0
    backward_slowdown: float = 1.0
    gap_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    compared_bytes_per_second: float = 1e12


GAP_SECONDS = 2.2e-6
"""Between two kernels that were both queued, on an H100."""
