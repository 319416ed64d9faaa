"""A loop that is watched: seconds and peak of each step, what autockpt logs, and the bits that it ends with."""

from __future__ import annotations

import logging
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmarks.gpu.memory import synchronize

__all__ = ["Loop", "Told", "bits", "listening", "watch"]


class Told(logging.Handler):
    """Keeps what the logger ``autockpt`` is told."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname}: {record.getMessage()}")
        if record.levelno >= logging.WARNING:
            self.warnings.append(record.getMessage())


@contextmanager
def listening() -> Iterator[Told]:
    """Keep what is logged in this context, and what is warned of."""
    told, logger = Told(), logging.getLogger("autockpt")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(told)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield told
        told.lines += [f"warning: {each.message}" for each in warned]
    finally:
        logger.removeHandler(told)
        logger.setLevel(before)


@dataclass(slots=True, kw_only=True)
class Loop:
    """Steps, one after the other.

    Attributes:
        seconds: of each, from an idle device to an idle one.
        peaks_bytes: the highest level of each; empty on a CPU, whose allocator keeps no statistics.
    """

    seconds: list[float] = field(default_factory=list)
    peaks_bytes: list[int] = field(default_factory=list)


def watch(loop: Loop, step: Callable[[], object], device: torch.device) -> None:
    """Run one step more, and write down its seconds and its peak."""
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    step()
    synchronize(device)
    loop.seconds.append(round(time.perf_counter() - began, 6))
    if device.type == "cuda":
        loop.peaks_bytes.append(torch.cuda.max_memory_allocated(device))


def bits(model: nn.Module) -> list[int]:
    """Return a checksum of the bits of each parameter and buffer, taken on the host: the device's level stays."""
    return [
        zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        for tensor in (*model.parameters(), *model.buffers())
    ]
