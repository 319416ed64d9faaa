"""Devices whose roofline is known: for seconds that nothing has measured. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The roofline of a device: dense matrix rate by bytes an element, and memory bandwidth, as its vendor states them.

    Attributes:
        half_flops: FLOP/s of 16-bit floats.
        single_flops: FLOP/s of 32-bit floats (TF32 where the device has it is not assumed).
        bytes_per_second: memory bandwidth.
    """

    half_flops: float
    single_flops: float
    bytes_per_second: float


DEVICES: Mapping[str, Device] = {
    "a100": Device(half_flops=312e12, single_flops=19.5e12, bytes_per_second=2.0e12),
    "h100": Device(half_flops=989e12, single_flops=67e12, bytes_per_second=3.35e12),
    "h200": Device(half_flops=989e12, single_flops=67e12, bytes_per_second=4.8e12),
    "rtx4090": Device(half_flops=165e12, single_flops=82.6e12, bytes_per_second=1.0e12),
    "t4": Device(half_flops=65e12, single_flops=8.1e12, bytes_per_second=0.32e12),
}

DEFAULT_DEVICE = "a100"
