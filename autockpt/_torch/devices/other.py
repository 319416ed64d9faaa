"""Any other device. A plan that the user gives runs on it, but nothing reports what a step allocates there."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .base import Level
from .clock import Clock, HostClock
from .tape import AllocatorTape


class Other:
    """A device whose allocations nobody reports; see `Device`."""

    memory = ""
    grain_bytes = 1
    number_bytes = 0
    margin = 0.0
    runs_at_once = False
    draws_inside_recurrent_layers = False
    spills_to_host = True
    generator_bytes = 0

    def __init__(self, at: torch.device) -> None:
        self.at = at

    @property
    def name(self) -> str:
        return self.at.type

    def total_bytes(self) -> int | None:
        return None

    def level(self) -> Level | None:
        return None

    def reset_peak(self) -> None: ...

    def tape(self) -> AllocatorTape:
        return AllocatorTape(self.at)

    def clock(self) -> Clock:
        return HostClock()

    def lanes(self) -> None: ...

    def wait(self) -> None: ...

    def settle(self, results: Iterable[torch.Tensor | None]) -> None: ...

    def forget_workspaces(self) -> int:
        return 0

    def why_never(self) -> str:
        return (
            f"steps are recorded on the CPU and on CUDA devices, and the model lies on {self.at}, whose allocations "
            "torch does not report. Plan in fake mode and give the plan: "
            'apply(model, plan=solve(profile(model, inputs, mode="fake"), budget)).'
        )

    def why_not_now(self) -> str:
        return ""
