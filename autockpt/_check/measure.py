"""`measure`: how high one step's memory really stood. The referee; it knows nothing of profiles and plans."""

from __future__ import annotations

import gc
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError
from .._record.alive import alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one step was measured to need.

    Attributes:
        peak_bytes: highest level of allocated bytes during the step, everything counted that was alive.
        start_bytes: level when the step began: parameters, buffers, gradients, batch, and whatever else was alive.
        end_bytes: level when the step ended.
        seconds: how long the step took, under the instrument.
        device: what was measured.
        resident_bytes: how far the process's resident memory rose above its level at the start, a second witness that
            counts pages instead of tensors; None but on a CPU under Linux. What the process had freed and not given
            back can hide some of it: run with ``MALLOC_MMAP_THRESHOLD_=131072`` in the environment, in a process that
            does nothing else.
    """

    peak_bytes: int
    start_bytes: int
    end_bytes: int
    seconds: float
    device: str
    resident_bytes: int | None = None

    @property
    def step_bytes(self) -> int:
        """How far the peak stood above the level at the start."""
        return self.peak_bytes - self.start_bytes


def measure(step: Callable[[], object], *, device: torch.device | str | None = None) -> Measurement:
    """Run one step and measure its peak.

    On CUDA the allocator's own statistics are read. On a CPU every allocation and free of the step is
    recorded (torch's profiler) and replayed in order, since adding up live tensors would miss the buffers
    inside kernels; what was alive before the step is what Python can see of it. Beside that stands by how much the
    process's resident memory rose (`Measurement.resident_bytes`).

    Args:
        step: runs the step: forward, backward and, if it is to count, the optimizer.
        device: what to measure; the current CUDA device if CUDA was initialised, else the CPU.

    Returns:
        The measurement.

    Raises:
        ProfilingError: a torch profiler is already running (CPU only).

    Example:
        >>> import torch, autockpt
        >>> model, batch = torch.nn.Linear(64, 64), torch.randn(32, 64)
        >>> autockpt.measure(lambda: model(batch).sum().backward()).step_bytes >= 64 * 64 * 4
        True
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"
    meter = meter_of(torch.device(device))
    with private.ALONE, private.no_profiler_left():  # steps that other threads measure or record wait
        meter.start()
        try:
            step()
        except BaseException:
            meter.stop()
            raise
        return meter.stop()


class Meter(Protocol):
    """Measures from `start` to `stop`."""

    def start(self) -> None:
        """Begin to measure.

        Raises:
            ProfilingError: a torch profiler is already running (CPU only).
        """

    def stop(self) -> Measurement:
        """End, and return what was measured."""


def meter_of(device: torch.device) -> Meter:
    """Return what measures a step on `device`."""
    return _CudaMeter(device) if device.type == "cuda" else _CpuMeter()


def allocated_bytes(device: torch.device) -> int:
    """Bytes that are allocated now; on a CPU those of all tensors that Python can see."""
    return (
        torch.cuda.memory_allocated(device)
        if device.type == "cuda"
        else sum(storage.nbytes() for storage in _live_storages().values())
    )


class _CudaMeter:
    """Reads the allocator's own statistics."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start_bytes = 0
        self._began = 0.0

    def start(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._start_bytes, self._began = torch.cuda.memory_allocated(self._device), time.perf_counter()

    def stop(self) -> Measurement:
        torch.cuda.synchronize(self._device)
        return Measurement(
            seconds=time.perf_counter() - self._began,
            peak_bytes=torch.cuda.max_memory_allocated(self._device),
            start_bytes=self._start_bytes,
            end_bytes=torch.cuda.memory_allocated(self._device),
            device=torch.cuda.get_device_name(self._device),
        )


class _CpuMeter:
    """Records every allocation and free, and replays them in order over what was alive.

    The profiler does not report the free of a block that is older than it. So each such storage says when it goes, by a
    marker in the stream: an allocation of a size of its own.
    """

    def __init__(self) -> None:
        self._live: dict[int, int] = {}
        self._marks: dict[tuple[int, int], int] = {}  # address and size of a marker: the address that was freed
        self._watched: list[weakref.ref[torch.UntypedStorage]] = []
        self._began = 0.0
        self._resident_bytes: int | None = None
        self._profiler: private.MemoryProfiler | None = None

    def start(self) -> None:
        gc.collect()  # garbage from before the step must not be freed inside it
        storages = _live_storages()
        self._live = {address: storage.nbytes() for address, storage in storages.items()}
        self._watched = [weakref.ref(each, partial(self._gone, address)) for address, each in storages.items()]
        del storages
        with private.ALONE:
            private.make_room()
            if private.profiler_is_running():
                raise ProfilingError("a torch profiler is already running; measuring would empty it. Stop it first.")
            self._profiler = private.start_memory_profiler()
        self._resident_bytes = _resident_bytes(highest=False)  # the first profiler of a process loads what it needs
        self._began = time.perf_counter()

    def stop(self) -> Measurement:
        assert self._profiler is not None
        seconds = time.perf_counter() - self._began
        highest = _resident_bytes(highest=True)
        profiler, self._profiler = self._profiler, None
        allocations = private.stop_memory_profiler(profiler)
        self._watched = []
        live = self._live
        level = start_bytes = peak_bytes = sum(live.values())
        for address, change, device_type, _ in allocations:
            if device_type != "cpu":
                continue
            if (address, change) in self._marks:
                level -= live.pop(self._marks[address, change], 0)
            elif (address, -change) in self._marks:
                del self._marks[address, -change]
            elif change > 0:
                level += change - live.pop(address, 0)  # what was there before has gone, whoever saw it
                live[address] = change
                peak_bytes = max(peak_bytes, level)
            else:
                level -= live.pop(address, 0)  # 0: older than the step, and never seen by Python
        risen = None if highest is None or self._resident_bytes is None else highest - self._resident_bytes
        return Measurement(
            peak_bytes=peak_bytes,
            start_bytes=start_bytes,
            end_bytes=level,
            seconds=seconds,
            device="cpu",
            resident_bytes=risen,
        )

    def _gone(self, address: int, _: object) -> None:
        """Mark that a storage older than the step has gone."""
        size = MARK_BYTES + 2 * len(self._marks)
        self._marks[torch.UntypedStorage(size).data_ptr(), size] = address


MARK_BYTES = 4097
"""Size of the first marker; each further one is 2 bytes larger. Odd: no tensor of 2, 4 or 8 byte elements has it."""


def _resident_bytes(*, highest: bool) -> int | None:
    """Resident bytes of this process, now or the highest since it was asked for those of now; None where unknown."""
    try:
        if not highest:
            Path("/proc/self/clear_refs").write_text("5")  # the highest level begins anew
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(rf"^{'VmHWM' if highest else 'VmRSS'}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _live_storages() -> dict[int, torch.UntypedStorage]:
    """Every CPU storage that Python can see, by address."""
    visible = alive(torch.Tensor)
    gradients = [tensor.grad for tensor in visible if tensor.is_leaf and tensor.grad is not None]
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in (*visible, *gradients):
        if type(tensor) in _REAL and tensor.device.type == "cpu" and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage
    return found


_REAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Other classes (fake tensors, wrappers) need not have memory of their own."""
