"""How fast a host launches and a device computes, for steps on two clocks (`two_clocks.py` of `_choose`). No torch.

A pace is a set of constants. Those of one H100 and its host are measured (`benchmarks/two_clocks`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ..step.host_seconds import HostSeconds
from .rooflines import IDLE_HOST, HostCosts, host_costs

if TYPE_CHECKING:
    from ..profile import Profile


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

    def launching_seconds(self, operators: int) -> float:
        """Return what it takes to launch forward and backward of so many operators."""
        backward_seconds = self.backward_kernels * self.backward_seconds
        return operators * self.forward_kernels * (self.forward_seconds + backward_seconds)

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


QUEUE = 1024
"""So many launches wait for a device of CUDA at most. The host then waits until the first of them is done."""

GAP_SECONDS = 2.2e-6
"""Between two kernels that were both queued, on an H100."""

H100_HOST = HostPace(
    forward_seconds=39.4e-6,
    backward_seconds=31.2e-6,
    forward_kernels=1.11,
    backward_kernels=1.96,
    costs=HostCosts(
        replay_seconds=390e-6, member_seconds=60e-6, save_seconds=15.6e-6, kept_seconds=82e-6, mode_seconds=52e-6
    ),
)
"""The host of one H100, of two Llamas in eager mode, the mean of both (`benchmarks/two_clocks`).

A segment took 650 microseconds of it and a save 26 on 2026-11-26. Since then frames take 0.6 of what they took, on a
CPU (`benchmarks/host_cost`). A unit, and what a mode meets, take what a plan with 62 kept functions took there.
"""

H100_SLOWDOWN = DevicePace(slowdown=1.41, backward_slowdown=1.33, gap_seconds=GAP_SECONDS)
"""A step on that H100 over the roofline, of the Llama that the device paces; the small one takes 1.58 and 1.44."""

H100_HOST_SLOWDOWN = 0.74
"""How many times as long that host takes as the one of `rooflines.ON_CPU`."""


FIRST_SHARE = 0.25
"""Of what recomputing takes of a measured host, in a first price; `rooflines.ON_A_DEVICE` is as much of one assumed."""

ONE_CLOCK = ("cpu", IDLE_HOST)
"""Devices without a host that launches ahead of them."""


def paces_of(profile: Profile) -> tuple[HostPace, DevicePace] | None:
    """Return how fast host and device are; None for a step whose seconds are those of one clock.

    On a CPU both clocks are one. Where ranks wait for each other, or a step has several devices or streams, seconds are
    the device's alone. What the profile does not say is assumed to be as on one H100, but a measured step took at least
    as long as its host launched.
    """
    if profile.device in ONE_CLOCK or profile.is_shared or (profile.host is not None and profile.host.alone):
        return None
    if profile.mode == "fake":
        return H100_HOST, H100_SLOWDOWN
    host = H100_HOST.scaled((profile.host_slowdown or H100_HOST_SLOWDOWN) / H100_HOST_SLOWDOWN)
    if profile.host is not None and profile.host.is_known:
        host = _measured(profile.host, len(profile.ops), host, is_slowdown_known=profile.host_slowdown is not None)
        return host, DevicePace(slowdown=profile.host.device_share, backward_slowdown=profile.host.device_share)
    launching = host.launching_seconds(len(profile.ops))
    return host.scaled(min(profile.plain_seconds / launching, 1.0) if launching else 1.0), DevicePace()


def host_mode(profile: Profile) -> Literal["measured"] | None:
    """Return ``measured`` where a step has two clocks, and its host's seconds are known."""
    if paces_of(profile) is None or profile.host is None or not profile.host.is_known:
        return None
    return "measured"


def first_costs(profile: Profile) -> HostCosts:
    """Return what recomputing costs the host at a first price, before it is known who sets the pace of a plan."""
    paces = paces_of(profile) if host_mode(profile) is not None else None
    if paces is None:
        return host_costs(profile.device, profile.host_slowdown)
    return paces[0].costs.scaled(FIRST_SHARE)


def _measured(found: HostSeconds, operators: int, as_h100: HostPace, *, is_slowdown_known: bool) -> HostPace:
    """Return the pace of a host that launches as it was seen to.

    Kernels are as many as there. What recomputing costs besides follows how fast the host is at that, and where this
    was not measured, how fast it launches.
    """
    kernels = max(operators * as_h100.forward_kernels, 1.0)
    launching = as_h100.launching_seconds(operators)
    faster = (found.forward_seconds + found.backward_seconds) / launching if launching else 1.0
    return replace(
        as_h100,
        forward_seconds=found.forward_seconds / kernels,
        backward_seconds=found.backward_seconds / (kernels * as_h100.backward_kernels),
        costs=as_h100.costs if is_slowdown_known else as_h100.costs.scaled(faster),
    )
