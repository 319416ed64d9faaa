"""What the recorder needs: the memory profiler, autograd nodes, fake tensors."""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode

LOG_LEVEL, ERROR = "FLAGS_caffe2_log_level", 2
"""The level from which torch writes its log, and that of errors: one above warnings."""

KINETO_LEVEL = "KINETO_LOG_LEVEL"
"""The same of the library below the profiler."""


CLOCK_KHZ = 1_500_000
"""Of a device that does not tell."""

AllocationEvent: TypeAlias = tuple[int, int, str, int | None]
"""Address, change in bytes (negative for a free), device type, device index."""


ALONE = threading.RLock()
"""Held by a thread that patches torch or has its profiler run: recordings and measurements wait for each other.

Used as it is in a ``with``: between its ``acquire`` and the block no interrupt comes. Who trains does not ask for it.
"""


_ENDS: list[Callable[[], object]] = []

_OURS: list[MemoryProfiler] = []
"""The profiler of ours that runs, if one does."""


def load_compiler() -> None:
    """Import what torch imports itself when a mode first sees an operator.

    That takes two hundred frames of Python's stack, which a model that is deep in its own forward need not have left.
    """
    import torch._dynamo  # noqa: F401


def yields_to_others(end: Callable[[], object]) -> None:
    """Say how a profiler of ours is ended that runs between the parts of a user's step, if another is wanted."""
    _ENDS[:] = [end]


def make_room() -> None:
    """End such a profiler, where it can be."""
    while _ENDS:
        _ENDS.pop()()


def profiler_is_running(*, elsewhere: bool = True) -> bool:
    """Return whether a torch profiler is recording: in this thread, or in any, since a process has room for one."""
    profiler: Any = torch.autograd.profiler
    return bool(torch.autograd._profiler_enabled()) or (elsewhere and profiler._is_profiler_enabled)  # type: ignore[attr-defined]


def our_profiler_is_running() -> bool:
    """Return whether the profiler that runs is one of ours."""
    return bool(_OURS)


@contextmanager
def no_profiler_left() -> Iterator[None]:
    """Stop a profiler that was started inside, where an interrupt came before its own end."""
    before = profiler_is_running()
    try:
        yield
    finally:
        if not before:
            _end_profiler()


def _end_profiler() -> None:
    """Stop this thread's profiler, if one runs, and say that none does."""
    _OURS.clear()
    profiler: Any = torch.autograd.profiler
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        profiler._disable_profiler()
    profiler._run_on_profiler_stop()


@dataclass(frozen=True, slots=True)
class MemoryProfiler:
    """A running profiler that records allocations.

    Attributes:
        log_level: the level of torch's log from before it.
    """

    log_level: int


def start_memory_profiler() -> MemoryProfiler:
    """Start a profiler that records allocations and no operators, and that writes nothing to stderr by itself."""
    options = torch.autograd.profiler.profile(profile_memory=True)
    config, activities = options.config(create_trace_id=True), {torch.profiler.ProfilerActivity.CPU}
    flag = _log_level()
    running = MemoryProfiler(flag.value)
    flag.value = max(flag.value, ERROR)  # else a warning for frees of memory that is older than the recording
    # A line for each start and stop has the highest level of all. The first profiler of a process reads the variable.
    quiet = nullcontext() if KINETO_LEVEL in os.environ else _variable(KINETO_LEVEL, "6")
    try:
        with ALONE, quiet:
            torch.autograd._prepare_profiler(config, activities)  # type: ignore[attr-defined]
            torch.autograd.profiler._run_on_profiler_start()
            # One of which nothing makes events. Those of operators would take longer than the allocations. Those of
            # `record_function`, in which every optimizer steps, are written to as they end: where we stop inside one
            # (a closure), torch has freed it by then, and the write lands in whatever is there, a gradient perhaps.
            scopes = {torch._C._profiler.RecordScope.LITE_INTERPRETER}
            torch.autograd._enable_profiler(config, activities, scopes)  # type: ignore[attr-defined, call-arg]
    except BaseException:
        flag.value = running.log_level
        _end_profiler()
        raise
    _OURS[:] = [running]
    return running


def stop_memory_profiler(running: MemoryProfiler, device_type: str) -> list[AllocationEvent]:
    """Stop a profiler of `start_memory_profiler`.

    Args:
        running: the profiler.
        device_type: whose allocations are wanted.

    Returns:
        Every allocation and free that it saw on the CPU and on such devices, in time order.
    """
    results: Any = None
    try:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            results = torch.autograd._disable_profiler()  # type: ignore[attr-defined]
    finally:
        _end_profiler()
        _log_level().value = running.log_level
    if results is None or not results.trace_start_ns():  # another profiler came in between, and has taken all
        return []
    return _of_the_tree(results) if device_type == "cpu" else _of_the_trace(results)


def _of_the_tree(results: Any) -> list[AllocationEvent]:
    """Read the events of the CPU. Those of another device are there only where an operator is their parent."""
    found: list[tuple[int, AllocationEvent]] = []
    todo: list[Any] = list(results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            fields = event.extra_fields
            found.append(
                (event.start_time_ns, (fields.ptr, fields.alloc_size, fields.device.type, fields.device.index))
            )
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
    """Read the events of all devices from the trace as it is saved: nothing else has them with their addresses."""
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
    """Return the level from which torch writes its log, to be set; one that nobody reads where it has another log."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so")), LOG_LEVEL)
    except (OSError, ValueError):
        return ctypes.c_int()


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Have a variable in the environment that is not there yet."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def forget_workspaces() -> None:
    """Have cuBLAS give the workspaces of all threads back to the allocator; the next products take new ones."""
    forget: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:
        forget()


def sleep_on(device: torch.device, seconds: float) -> None:
    """Keep the current stream of a CUDA device from working for about so long."""
    clock_khz = getattr(torch.cuda.get_device_properties(device), "clock_rate", CLOCK_KHZ)
    with torch.cuda.device(device):
        torch.cuda._sleep(int(seconds * clock_khz * 1e3))


def no_torch_functions() -> AbstractContextManager[None]:
    """Return a context in which no function mode sees anything."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


@contextmanager
def outside_modes() -> Iterator[None]:
    """Switch every function mode and dispatch mode off inside the block."""
    function_modes = []
    with torch.utils._python_dispatch._disable_current_modes():
        while torch._C._len_torch_function_stack():
            function_modes.append(torch._C._pop_torch_function_stack())
        try:
            yield
        finally:
            for mode in reversed(function_modes):
                torch._C._push_on_torch_function_stack(mode)


def fake_mode_of(tensor: Tensor) -> Any:
    """Return the mode that a fake tensor belongs to, or None for any other tensor."""
    data = tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor
    return data.fake_mode if isinstance(data, FakeTensor) else None


def new_fake_mode() -> FakeTensorMode:
    """Return a mode whose tensors have shapes and no values; constants that a model makes may be real."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep fake tensors from logging errors that they raise as well."""
    logger = logging.getLogger(FakeTensorMode.__module__)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def has_reentrant_checkpoint(scalar: Tensor) -> bool:
    """Whether a region of ``torch.utils.checkpoint`` with ``use_reentrant=True`` lies behind `scalar`."""
    todo, seen = [scalar.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if type(node).__name__ == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        todo.extend(target for target, _ in node.next_functions)
    return False


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `module` was compiled, by ``module.compile()`` or ``torch.compile(module)``."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def active_data_parallel() -> torch.nn.Module | None:
    """Return the DistributedDataParallel whose forward is running, None if there is none."""
    active: torch.nn.Module | None = torch.nn.parallel.DistributedDataParallel._active_ddp_module
    return active


def after_backward(callback: Callable[[], None]) -> None:
    """Have something called when the backward is over that is running now."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def forget_empty_hooks(tensor: Tensor) -> None:
    """Put a tensor whose last hook was removed back to the state of one that never had any."""
    if not tensor._backward_hooks:
        tensor._backward_hooks = None


def cached_weights() -> dict[Any, Any]:
    """Return what torch's ``parametrize.cached()`` holds now."""
    cache: dict[Any, Any] = torch.nn.utils.parametrize._cache
    return cache


def empty_pinned_cache() -> None:
    """Give back the pinned memory that torch keeps for later requests, where torch can."""
    empty = getattr(torch._C, "_host_emptyCache", None)  # of a torch with CUDA
    empty = empty or getattr(torch.accelerator, "empty_host_cache", None)  # of a newer one, with any device
    if empty is not None and torch.accelerator.is_available():
        empty()
