"""What the host of a device took in a step, beside the seconds of the device; no torch."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..text.amounts import Seconds
from .tables import Part

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class HostSeconds(Part, frozen=True, kw_only=True):
    """What the host of a device took to launch a plain step.

    It was measured in a step that waited for the device at every saved tensor. So nothing else kept the host waiting.

    Attributes:
        call_seconds: for each call, what its forward took of the host, calls inside it included; empty where that is
            not known.
        forward_seconds: of forward, loss included.
        backward_seconds: of backward.
        device_share: of the seconds that the profile has for the device, what it computes; for the rest it waits for
            the host.
        discarded: why what was measured does not count; empty where it does.
        alone: why the step is simulated with the device's clock alone; empty where it has two.
    """

    call_seconds: tuple[Seconds, ...] = ()
    forward_seconds: Seconds = 0.0
    backward_seconds: Seconds = 0.0
    device_share: Share = 1.0
    discarded: str = ""
    alone: str = ""

    @property
    def is_known(self) -> bool:
        """Whether there are seconds of the host."""
        return bool(self.call_seconds)
