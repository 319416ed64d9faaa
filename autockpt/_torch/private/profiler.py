"""The memory profiler, of which a process has one: who runs it, and which allocations it saw."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch

LOG_LEVEL, ERROR = "FLAGS_caffe2_log_level", 2
"""The name of torch's variable for the level from which it writes its log; the level of errors, one above warnings."""

KINETO_LEVEL = "KINETO_LOG_LEVEL"
"""The environment variable for the log level of Kineto, the library below the profiler."""

AllocationEvent: TypeAlias = tuple[int, int, str, int | None]
"""Address, change in bytes (negative for a free), device type, device index."""

ALONE = threading.RLock()
"""Held by a thread that patches torch or runs its profiler, so recordings and measurements wait for each other.

It is used directly in a ``with``, so that no interrupt comes between its ``acquire`` and the block. Training does not
take it.
"""

_ENDS: list[Callable[[], object]] = []

_OURS: list[MemoryProfiler] = []
"""Our readers of the profiler that runs: a measurement, a recording, or both if one is inside the other."""


def yields_to_others(end: Callable[[], object]) -> None:
    """Note how our profiler is ended if another is wanted; until then it runs between the parts of a user's step."""
    _ENDS[:] = [end]
    for running in _OURS[-1:]:
        running.stays = True


def end_our_profiler() -> None:
    """End the profiler of `yields_to_others`, if there is one."""
    while _ENDS:
        _ENDS.pop()()


def profiler_is_running(*, elsewhere: bool = True) -> bool:
    """Return whether a torch profiler is recording in this thread, or `elsewhere`: a process has room for only one."""
    profiler: Any = torch.autograd.profiler
    return bool(torch.autograd._profiler_enabled()) or (elsewhere and profiler._is_profiler_enabled)  # type: ignore[attr-defined]


def our_profiler_is_running() -> bool:
    """Return whether the profiler that runs is one of ours."""
    return bool(_OURS)


def measuring() -> bool:
    """Return whether the profiler that runs is a measurement's in this thread: a recording may share it."""
    here = bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]
    return here and bool(_OURS) and all(each.measures for each in _OURS)


def foreign_profiler() -> str:
    """Return the name of the class of a user's profiler that is running; empty if none is found."""
    own: Any = torch.autograd.profiler.profile
    kinds: tuple[Any, ...] = (torch.profiler.profile, own)
    for kind in kinds:
        for each in gc.get_objects():
            if issubclass(type(each), kind):
                inner = each if issubclass(type(each), own) else each.profiler
                if getattr(inner, "entered", False) and inner.kineto_results is None:
                    return f"torch.{'profiler' if kind is not own else 'autograd.profiler'}.{kind.__name__}"
    return ""


@contextmanager
def no_profiler_left() -> Iterator[None]:
    """After the block, stop a profiler that was started in it and that an interrupt kept from being stopped."""
    before = profiler_is_running()
    try:
        yield
    finally:
        staying = [each for each in _OURS if each.stays]
        if staying:  # the recording of a step goes on after the measurement inside it
            _OURS[:] = staying
        elif not before:
            _end_profiler()


def _end_profiler() -> None:
    """Stop this thread's profiler, if one runs, and say that none does."""
    _OURS.clear()
    profiler: Any = torch.autograd.profiler
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        profiler._disable_profiler()
    profiler._run_on_profiler_stop()


@dataclass(eq=False, slots=True)
class MemoryProfiler:
    """A reader of the running profiler, which records allocations.

    Attributes:
        log_level: the level of torch's log from before it.
        measures: whether it is a measurement's, whose profiler others may share.
        stays: whether it goes on after the block that started it.
        events: what was seen on the CPU until another reader last began or ended; empty if none has.
    """

    log_level: int
    measures: bool = False
    stays: bool = False
    events: list[AllocationEvent] = field(default_factory=list)


def start_memory_profiler(*, measures: bool = False) -> MemoryProfiler:
    """Start a profiler that records allocations and no operators, and that writes nothing to stderr by itself.

    If one is `measuring`, its readers get what it saw so far, and a new profiler goes on for them and the new reader.
    """
    if measuring():
        others = list(_OURS)
        _hand_out(torch.autograd._disable_profiler(), others)  # type: ignore[attr-defined]
        _end_profiler()
        running = MemoryProfiler(others[0].log_level, measures=measures)
        return _start(running, others)
    flag = _log_level()
    return _start(MemoryProfiler(flag.value, measures=measures), [])


def _start(running: MemoryProfiler, others: list[MemoryProfiler]) -> MemoryProfiler:
    options = torch.autograd.profiler.profile(profile_memory=True)
    config, activities = options.config(create_trace_id=True), {torch.profiler.ProfilerActivity.CPU}
    flag = _log_level()
    flag.value = max(flag.value, ERROR)  # else torch warns of frees of memory that is older than the recording
    # Kineto writes a line for each start and stop, at its highest level. Only a process's first profiler reads this.
    quiet = nullcontext() if KINETO_LEVEL in os.environ else _variable(KINETO_LEVEL, "6")
    try:
        with ALONE, quiet:
            torch.autograd._prepare_profiler(config, activities)  # type: ignore[attr-defined]
            torch.autograd.profiler._run_on_profiler_start()
            # A scope in which nothing makes events. Events of operators would take longer than the allocations. An
            # event of `record_function`, in which every optimizer steps, is written to as it ends. If we stop inside
            # one (in a closure), torch has freed it by then, and the write lands in other memory, a gradient perhaps.
            scopes = {torch._C._profiler.RecordScope.LITE_INTERPRETER}
            torch.autograd._enable_profiler(config, activities, scopes)  # type: ignore[attr-defined, call-arg]
    except BaseException:
        flag.value = running.log_level
        _end_profiler()
        raise
    _OURS[:] = [*others, running]
    return running


def _hand_out(results: Any, readers: list[MemoryProfiler]) -> None:
    """Add to the events of readers what was seen on the CPU."""
    seen = _of_the_tree(results)
    for each in readers:
        each.events += seen


def stop_memory_profiler(running: MemoryProfiler, device_type: str) -> list[AllocationEvent]:
    """Stop a profiler of `start_memory_profiler`.

    Args:
        running: the profiler.
        device_type: the kind of device whose allocations are wanted.

    Returns:
        In time order, every allocation and free that it saw on the CPU and on such devices; empty if another profiler
        has taken them.
    """
    results: Any = None
    others = [each for each in _OURS if each is not running]
    try:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            results = torch.autograd._disable_profiler()  # type: ignore[attr-defined]
    finally:
        _end_profiler()
        _log_level().value = running.log_level
    if results is None or not results.trace_start_ns():  # another profiler came in between, and has taken all events
        return []
    if others and device_type == "cpu":  # it was one profiler for all: they get what was seen, and it starts again
        _hand_out(results, [running, *others])
        _start(others[-1], others[:-1])
        return running.events
    return [*running.events, *_of_the_tree(results)] if device_type == "cpu" else _of_the_trace(results)


def _of_the_tree(results: Any) -> list[AllocationEvent]:
    """Read the events of the CPU. Those of another device are in the tree only if an operator is their parent."""
    kind: Any = torch._C._profiler._ExtraFields_Allocation  # cheaper than the tag, which is made anew at each read
    found: list[tuple[int, AllocationEvent]] = []
    todo: list[Any] = list(results.experimental_event_tree())
    while todo:
        event = todo.pop()
        fields = event.extra_fields
        if isinstance(fields, kind):  # nothing is inside it
            device = fields.device
            found.append((event.start_time_ns, (fields.ptr, fields.alloc_size, device.type, device.index)))
        else:
            todo.extend(event.children)
    found.sort(key=lambda entry: entry[0])
    return [event for _, event in found]


class _Memory(msgspec.Struct, frozen=True):
    """An allocation or a free, as a saved trace has it."""

    address: int = msgspec.field(name="Addr", default=0)
    change_bytes: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=0)
    device_index: int = msgspec.field(name="Device Id", default=-1)


class _Traced(msgspec.Struct, frozen=True):
    """An event of a saved trace; the time is in microseconds."""

    name: str = ""
    ts: float = 0.0
    args: _Memory | None = None


class _Trace(msgspec.Struct, frozen=True):
    events: list[_Traced] = msgspec.field(name="traceEvents")


def _of_the_trace(results: Any) -> list[AllocationEvent]:
    """Read the events of all devices from the saved trace: nothing else has them with their addresses."""
    with tempfile.TemporaryDirectory(prefix="autockpt-") as folder:
        path = Path(folder) / "trace.json"
        results.save(str(path))
        trace = msgspec.json.decode(path.read_bytes(), type=_Trace)
    numbers: Any = torch._C._autograd.DeviceType.__members__
    kinds = {int(number): name.lower() for name, number in numbers.items()}
    memory = sorted((each for each in trace.events if each.name == "[memory]"), key=lambda event: event.ts)
    return [
        (each.args.address, each.args.change_bytes, kinds[each.args.device_type], each.args.device_index)
        for each in memory
        if each.args is not None
    ]


def _log_level() -> ctypes.c_int:
    """Return torch's variable for the level of its log, to read and set; a new one if this torch has another log."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so")), LOG_LEVEL)
    except (OSError, ValueError):
        return ctypes.c_int()


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment inside the block; it is not set yet."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
