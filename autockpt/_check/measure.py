"""`measure`: the real peak of one step. It is the referee, so it knows nothing of profiles and plans."""

from __future__ import annotations

import gc
import re
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from .._data.errors import ProfilingError
from .._data.text.document import Document
from .._ranks.buckets import unseen_bytes
from .._record.alive import alive, each_storage
from .._torch import private
from .._torch.devices import Device, Level, device_of
from .._torch.devices.present import device_in_use
from ..solvers.units import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Document):
    """What one step was measured to need.

    Attributes:
        peak_bytes: highest level of allocated bytes during the step, everything counted that was alive.
        start_bytes: level when the step began: parameters, buffers, gradients, batch, and whatever else was alive.
        end_bytes: level when the step ended.
        seconds: how long the step took, under the instrument.
        device: what was measured.
        resident_bytes: how far the process's resident memory rose above its level at the start: a second figure, which
            counts pages instead of tensors. None except on a CPU under Linux. Memory that the process had freed, but
            not returned to the system, can hide some of it: run with ``MALLOC_MMAP_THRESHOLD_=131072`` in the
            environment, in a process that does nothing else.
    """

    _repr_pretty_ = Document._repr_pretty_  # IPython would take the repr of the dataclass, which comes first

    PAGE: ClassVar[str] = "explain.results.measurement_page"

    peak_bytes: int
    start_bytes: int
    end_bytes: int
    seconds: float
    device: str
    resident_bytes: int | None = None

    @property
    def step_bytes(self) -> int:
        """How far the peak was above the level at the start."""
        return self.peak_bytes - self.start_bytes


def measure(step: Callable[[], object], *, device: torch.device | str | None = None) -> Measurement:
    """Run one step and measure its peak.

    On a GPU the allocator's own statistics are read. On a CPU every allocation and free of the step is
    recorded (torch's profiler) and replayed in order, since adding up live tensors would miss the buffers
    inside kernels; what was alive before the step is counted as far as Python sees it. The rise of the process's
    resident memory is measured as well (`Measurement.resident_bytes`).

    Args:
        step: runs the step: forward, backward and, if it is to count, the optimizer.
        device: what to measure; the current CUDA device if CUDA was initialised, else the CPU.

    Returns:
        The measurement.

    Raises:
        ProfilingError: a torch profiler is already running (CPU only), the step is no function, or there is no such
            device.

    Example:
        >>> import torch, autockpt
        >>> model, batch = torch.nn.Linear(64, 64), torch.randn(32, 64)
        >>> autockpt.measure(lambda: model(batch).sum().backward()).step_bytes >= 64 * 64 * 4
        True
    """
    given: object = step
    if not callable(given) or isinstance(given, torch.nn.Module):
        raise ProfilingError(
            f"step is {shown(step)}; give a function that runs a step, such as lambda: model(batch).sum().backward()"
        )
    found = device_of(device_in_use() if device is None else _device_named(device))
    with private.ALONE, private.no_profiler_left():  # steps that other threads measure or record wait
        found.wait()
        found.reset_peak()
        before = found.level()
        return _by_profiler(step) if before is None else _by_statistics(step, found, before)


def _device_named(device: object) -> torch.device:
    try:
        return torch.device(device)  # type: ignore[call-overload, no-any-return]
    except (RuntimeError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise ProfilingError(f"device is {shown(device)}; give one such as 'cpu' or 'cuda:0' ({said:.100})") from error


def _by_statistics(step: Callable[[], object], device: Device, before: Level) -> Measurement:
    """Read the allocator's own statistics."""
    began = time.perf_counter()
    step()
    device.wait()
    seconds, after = time.perf_counter() - began, device.level()
    assert after is not None
    return Measurement(
        seconds=seconds,
        peak_bytes=after.peak_bytes,
        start_bytes=before.allocated_bytes,
        end_bytes=after.allocated_bytes,
        device=device.name,
    )


def _by_profiler(step: Callable[[], object]) -> Measurement:
    """Record every allocation and free, and replay them in order over what was alive."""
    gc.collect()  # garbage from before the step must not be freed inside it
    private.end_our_profiler()
    if private.profiler_is_running():
        raise ProfilingError("a torch profiler is already running; measuring would empty it. Stop it first.")
    tensors = alive(torch.Tensor)  # only once: threads of collectives may free some meanwhile
    older, buckets = _Older(tensors), _Buckets(tensors)
    del tensors
    profiler = private.start_memory_profiler(measures=True)
    resident_bytes = _resident_bytes(highest=False)  # the first profiler of a process loads what it needs
    began = time.perf_counter()
    try:
        step()
    finally:
        seconds = time.perf_counter() - began
        highest = _resident_bytes(highest=True)
        allocations = private.stop_memory_profiler(profiler, "cpu")
        older.watched = []  # what is freed from now on is freed after the step
    start_bytes = sum(older.live.values()) + buckets.stood_bytes
    # The profiler has not seen DDP free its first buckets. It has seen those that were made in their place.
    level, peak_bytes = _levels(allocations, older, start_bytes - buckets.gone_bytes())
    return Measurement(
        peak_bytes=max(peak_bytes, start_bytes),
        start_bytes=start_bytes,
        end_bytes=level,
        seconds=seconds,
        device="cpu",
        resident_bytes=None if highest is None or resident_bytes is None else highest - resident_bytes,
    )


def _levels(allocations: Iterable[private.AllocationEvent], older: _Older, level: int) -> tuple[int, int]:
    """Replay allocations and frees from a level on; return the last level and the highest."""
    live, peak_bytes = older.live, level
    for address, change, device_type, _ in allocations:
        if device_type != "cpu":
            continue
        if (address, change) in older.marks:
            level -= live.pop(older.marks[address, change], 0)
        elif (address, -change) in older.marks:
            del older.marks[address, -change]
        elif change > 0:
            level += change - live.pop(address, 0)  # what was at this address has been freed, seen or not
            live[address] = change
            peak_bytes = max(peak_bytes, level)
        else:
            level -= live.pop(address, 0)  # 0: older than the step, and never seen by Python
    return level, peak_bytes


class _Older:
    """Storages that are older than the step. The profiler does not report their frees.

    So each puts a marker into the stream when it is freed: an allocation of a unique size.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        storages = (each.untyped_storage() for each in each_storage(tensors, "cpu").values())
        found = {storage.data_ptr(): storage for storage in storages}
        self.live = {address: storage.nbytes() for address, storage in found.items()}
        self.marks: dict[tuple[int, int], int] = {}  # address and size of a marker: the address that was freed
        self.watched = [weakref.ref(each, partial(self._gone, address)) for address, each in found.items()]

    def _gone(self, address: int, _: object) -> None:
        """Mark that a storage is freed."""
        size = MARK_BYTES + 2 * len(self.marks)
        self.marks[torch.UntypedStorage(size).data_ptr(), size] = address


class _Buckets:
    """The buckets of every DistributedDataParallel that Python does not see.

    DDP rebuilds its buckets once: the old ones are freed unseen, and the profiler sees the new ones. If Python saw a
    collective on them, as in a recorded step, they are among the flat tensors alive, and count like all others. So do
    those in which gradients lie: where `zero_grad` has taken the gradients away they still have their Python objects.

    Attributes:
        stood_bytes: bytes of the buckets that were alive as the step began.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        found = alive(DistributedDataParallel) if private.process_group() else []
        unseen = {each: unseen_bytes(each) for each in found}
        flat = _flat_sizes(tensors) if any(unseen.values()) else []
        for wrapper, n_bytes in unseen.items():
            seen, left_bytes = [], n_bytes
            for size in flat:
                if size <= left_bytes:
                    seen.append(size)
                    left_bytes -= size
            if not left_bytes:
                unseen[wrapper] = 0
                for size in seen:
                    flat.remove(size)
            elif wrapper.gradient_as_bucket_view and n_bytes == _let_go_bytes(wrapper, tensors):
                unseen[wrapper] = 0
        self._waiting = {each: size for each, size in unseen.items() if not private.has_rebuilt_buckets(each)}
        self.stood_bytes = sum(unseen.values())

    def gone_bytes(self) -> int:
        """Return the bytes of the buckets that were freed since, as a forward rebuilt them."""
        return sum(size for wrapper, size in self._waiting.items() if private.has_rebuilt_buckets(wrapper))


def _let_go_bytes(wrapper: DistributedDataParallel, tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of a wrapper's gradients that are alive after `zero_grad`, and that Python no longer refers to.

    Gradients that were views of buckets stay so. They are found by their shapes, which are those of trained parameters.
    Of the tensors with such shapes, those count that no Python object holds. Each storage counts once.
    """
    shapes = {each.shape for each in wrapper.parameters() if each.requires_grad}
    found = [each for each in tensors if each.shape in shapes and not each.requires_grad and private.storage_key(each)]
    ours, held = {id(tensors), id(found)}, set[int]()  # our own lists refer to them too
    for each in gc.get_referrers(*found):  # an optimizer's state has these shapes too, and is held
        held.update(map(id, gc.get_referents(each)) if id(each) not in ours else ())
    storages = each_storage((each for each in found if id(each) not in held), "cpu").values()
    return sum(each.untyped_storage().nbytes() for each in storages)


def _flat_sizes(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the sizes of flat tensors that take a whole storage and are not trained, the largest first."""
    found = [each for each in tensors if each.layout == torch.strided and each.dim() == 1]
    own = [each for each in found if private.storage_key(each) and each.nbytes == each.untyped_storage().nbytes()]
    storages = each_storage((each for each in own if not each.requires_grad), "cpu").values()
    return sorted((each.nbytes for each in storages if each.dim() == 1), reverse=True)


MARK_BYTES = 4097
"""Size of the first marker; each further one is 2 bytes larger. Odd: no tensor of 2, 4 or 8 byte elements has it."""


def _resident_bytes(*, highest: bool) -> int | None:
    """Resident bytes of this process: now, or the `highest` since they were last read without it; None if unknown."""
    try:
        if not highest:
            Path("/proc/self/clear_refs").write_text("5")  # the highest level begins anew
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(rf"^{'VmHWM' if highest else 'VmRSS'}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None
