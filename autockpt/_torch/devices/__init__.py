"""Devices: the only room that knows their kinds by name.

base.py      `Device`: what the rest of the library asks
cpu.py, cuda.py, other.py   one file a kind
present.py   which devices this process uses; streams and generators of CUDA
tape.py      allocations and frees of a device, in order
clock.py     time without waiting for the device
lanes.py     copies to the host and back, beside the computing
arrival.py   a small tensor on its way to the host, which nobody waits for
roofline.py  bytes and operations of operators, to predict seconds on a device that is not there

A new kind is a file here and a line in `device_of`. `present.py`, `lanes.py` and `arrival.py` know CUDA alone;
CONTRIBUTING names what else has to know a kind. The rates of devices that are not there lie in `_data/hardware`,
which needs no torch.
"""

from __future__ import annotations

import torch

from .base import Device, Level, rounded
from .clock import Clock, HostClock
from .cpu import Cpu
from .cuda import Cuda
from .other import Other
from .tape import AllocatorTape, Event

__all__ = [
    "AllocatorTape",
    "Clock",
    "Device",
    "Event",
    "HostClock",
    "Level",
    "device_of",
    "planned_device",
    "rounded",
]


def device_of(at: torch.device) -> Device:
    """Return the `Device` for a device of torch's."""
    if at.type == "cpu":
        return Cpu()
    return Cuda(at) if at.type == "cuda" else Other(at)


def planned_device() -> Device:
    """Return the kind of device that predictions are for, which need not be there: all with a roofline are CUDA."""
    return Cuda(torch.device("cuda", 0))
