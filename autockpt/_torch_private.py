"""Every private torch name that autockpt uses, each behind one small function.

`tests/frames/test_torch_private.py` tests each of them, so a new torch version fails there first.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import Optimizer, optimizer

__all__ = [
    "AllocationEvent",
    "MemoryProfiler",
    "any_autocast_enabled",
    "attention_backends",
    "bare_step",
    "base_of",
    "blank_optimizer",
    "container_handlers",
    "convolution_options",
    "cuda_in_use",
    "default_generator",
    "fake_mode_of",
    "foreach_by_default",
    "foreign_checkpoint_active",
    "forget_empty_hooks",
    "geometry",
    "has_reentrant_checkpoint",
    "is_compiled",
    "is_item",
    "never_compiled",
    "new_fake_mode",
    "no_torch_functions",
    "outer_hooks",
    "output_bytes",
    "packed",
    "plain_torch_function",
    "pop_hooks",
    "preserved_version",
    "profiler_is_running",
    "push_hooks",
    "saving_node",
    "sequence_number",
    "set_attention_backends",
    "start_memory_profiler",
    "stop_memory_profiler",
    "storage_key",
    "tensor_without_storage",
    "transforms_active",
    "version",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Tensor)
Hooks: TypeAlias = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


LOG_LEVEL, ERROR = "FLAGS_caffe2_log_level", 2
"""The level from which torch writes its log, and that of errors: one above warnings."""

KINETO_LEVEL = "KINETO_LOG_LEVEL"
"""The same of the library below the profiler."""


def push_hooks(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
    """Make `pack` and `unpack` the innermost saved-tensors hooks (the context manager costs twice as much)."""
    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def pop_hooks() -> None:
    """Take the innermost saved-tensors hooks away."""
    torch._C._autograd._pop_saved_tensors_default_hooks()


def outer_hooks() -> Hooks | None:
    """Return the innermost saved-tensors hooks, None if there are none."""
    hooks: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks


def never_compiled(function: F) -> F:
    """Keep the compiler from tracing `function` and what it calls: autograd calls hooks from compiled code too.

    `torch.compiler.disable` says the same, but imports the compiler, which takes a second.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def foreign_checkpoint_active() -> bool:
    """Whether a region of `torch.utils.checkpoint` is recording or recomputing in this thread, innermost."""
    hooks = outer_hooks()
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


def transforms_active() -> bool:
    """Whether saved-tensors hooks are disabled, or a `torch.func` transform or forward-mode level is active."""
    return (
        not torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        or torch._C._functorch.maybe_current_level() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def any_autocast_enabled() -> bool:
    """Whether autocast is on for any device type in this thread."""
    enabled: bool = torch._C._is_any_autocast_enabled()
    return enabled


def version(tensor: Tensor) -> int:
    """Return how often `tensor` was changed in place; -1 for an inference tensor, which does not count."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def preserved_version(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context in which changing `tensor` in place is not counted: for putting a value back."""
    if version(tensor) < 0:
        return nullcontext()
    context: AbstractContextManager[None] = torch.autograd._unsafe_preserve_version_counter(tensor)  # type: ignore[attr-defined]
    return context


def storage_key(tensor: Tensor) -> int:
    """Return a number that tensors alive at the same time share exactly when they share storage; 0 if there is none."""
    try:
        key: int = tensor.untyped_storage()._cdata
    except NotImplementedError:  # sparse and other layouts without storage
        return 0
    return key


def attention_backends() -> tuple[Any, ...]:
    """Return which kernels `scaled_dot_product_attention` may choose from, and in which order (`sdpa_kernel`)."""
    return (
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
        torch._C._get_overrideable_sdp_enabled(),
        torch._C._get_sdp_priority_order(),
    )


def set_attention_backends(backends: tuple[Any, ...]) -> None:
    """Make `backends`, as `attention_backends` returned them, the choice again."""
    flash, efficient, math_only, cudnn, overrideable, order = backends
    torch._C._set_sdp_use_flash(flash)
    torch._C._set_sdp_use_mem_efficient(efficient)
    torch._C._set_sdp_use_math(math_only)
    torch._C._set_sdp_use_cudnn(cudnn)
    torch._C._set_sdp_use_overrideable(overrideable)
    torch._C._set_sdp_priority_order(order)


def geometry(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    """Return shape and strides; no strides for layouts that have none."""
    try:
        return tensor.shape, tensor.stride()
    except RuntimeError:  # compressed sparse layouts
        return tensor.shape, ()


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor that autograd knows `tensor` to be a view of; itself if it is none."""
    return tensor if tensor._base is None else tensor._base


def packed(node: Any, name: str) -> Any:
    """Return what a pack hook made of a tensor that an operator's autograd node saves, without unpacking it.

    Args:
        node: the node.
        name: of the tensor, as torch's derivatives call it: ``result``, ``self``.

    Returns:
        That object; None where the node saves no such tensor, or not in this case.
    """
    saved = getattr(node, f"_raw_saved_{name}", None)
    return None if saved is None else saved.data


def tensor_without_storage(kind: type[T], meta: Tensor, device: torch.device) -> T:
    """Return a tensor of the subclass `kind` that looks like `meta` on `device` and has no memory."""
    new: T = Tensor._make_wrapper_subclass(
        kind, meta.shape, meta.stride(), meta.storage_offset(), dtype=meta.dtype, device=device
    )
    return new


def suspend_function_mode(mode: object) -> bool:
    """Switch off the torch function mode `mode` if it is the innermost; whether it was."""
    depth = torch._C._len_torch_function_stack()
    if depth and torch._C._get_function_stack_at(depth - 1) is mode:
        torch._C._pop_torch_function_stack()
        return True
    return False


def resume_function_mode(mode: object) -> None:
    """Switch `mode` on again, as the innermost."""
    torch._C._push_on_torch_function_stack(mode)


plain_torch_function = torch._C._disabled_torch_function_impl
"""For subclasses whose instances torch functions treat as any tensor."""


def cuda_in_use() -> bool:
    """Whether this process has touched a CUDA device."""
    return bool(torch.cuda.is_initialized())


def container_handlers(
    kind: type,
) -> tuple[Callable[[Any], tuple[list[Any], Any]], Callable[[list[Any], Any], Any]] | None:
    """Return how torch's pytree takes containers of exactly `kind` apart and rebuilds them; None if it cannot."""
    node = pytree.SUPPORTED_NODES.get(kind)
    return None if node is None else (node.flatten_fn, node.unflatten_fn)


def default_generator(device: torch.device) -> torch.Generator | None:
    """Return the generator that random operators on `device` draw from, None if the device has none of its own."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        generator: torch.Generator = torch.mps._get_default_mps_generator()
        return generator
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    index = device.index or 0
    return generators[index] if index < len(generators) else None


# --- the recorder ---------------------------------------------------------------------------------------

AllocationEvent = tuple[int, int, str, int | None]
"""Address, change in bytes (negative for a free), device type, device index."""


def profiler_is_running() -> bool:
    """Return whether a torch profiler is recording in this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class MemoryProfiler:
    """A running profiler that records allocations, and the level of torch's log from before it."""

    profiler: torch.profiler.profile
    log_level: int


def start_memory_profiler() -> MemoryProfiler:
    """Start a profiler that records allocations, and that writes nothing to stderr by itself."""
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=False
    )
    flag = _log_level()
    running = MemoryProfiler(profiler, flag.value)
    flag.value = max(flag.value, ERROR)  # else a warning for frees of memory that is older than the recording
    # A line for each start and stop has the highest level of all. The first profiler of a process reads the variable.
    quiet = nullcontext() if KINETO_LEVEL in os.environ else _variable(KINETO_LEVEL, "6")
    with quiet, _no_operators(), warnings.catch_warnings():
        # Torch 2.11 warns that a second cycle clears the first's events, also where there is only one.
        warnings.filterwarnings("ignore", message=".*Profiler clears events", category=UserWarning)
        profiler.__enter__()
    return running


def stop_memory_profiler(running: MemoryProfiler) -> list[AllocationEvent]:
    """Stop a profiler of `start_memory_profiler`; return every allocation and free that it saw, in time order."""
    profiler = running.profiler
    profiler.__exit__(None, None, None)
    _log_level().value = running.log_level
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    found: list[tuple[int, AllocationEvent]] = []
    todo: list[Any] = list(profiler.profiler.kineto_results.experimental_event_tree())
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


def _log_level() -> ctypes.c_int:
    """Return the level from which torch writes its log, to be set; one that nobody reads where it has another log."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so")), LOG_LEVEL)
    except (OSError, ValueError):
        return ctypes.c_int()


@contextmanager
def _no_operators() -> Iterator[None]:
    """Let a profiler that is started inside see no operators: an event for each takes longer than the allocations."""
    module: Any = torch.autograd.profiler
    enable = module._enable_profiler

    def only_named_ranges(config: Any, activities: Any) -> None:
        enable(config, activities, {torch._C._profiler.RecordScope.USER_SCOPE})

    module._enable_profiler = only_named_ranges
    try:
        yield
    finally:
        module._enable_profiler = enable


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Have a variable in the environment that is not there yet."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def no_torch_functions() -> AbstractContextManager[None]:
    """Return a context in which no function mode sees anything."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


def saving_node() -> int:
    """Return, inside a pack hook, the sequence number of the autograd node that saves the tensor."""
    return int(torch._C._autograd._get_sequence_nr()) - 1


def sequence_number(node: Any) -> int:
    """Return the number that orders autograd nodes: the engine runs them from the highest to the lowest."""
    return int(node._sequence_nr())


def output_bytes(node: Any) -> tuple[int, ...]:
    """Return the bytes of each output of the forward operator that made an autograd node."""
    return tuple(
        math.prod(metadata.shape) * metadata.dtype.itemsize if metadata.dtype is not None else 0
        for metadata in node._input_metadata
    )


def convolution_options(node: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return the shape of the bias behind a convolution's autograd node, empty for none, and the options of both ways.

    Those are stride, padding, dilation, whether it is transposed, output padding and groups.
    """
    sizes = [tuple(getattr(node, f"_saved_{name}")) for name in ("stride", "padding", "dilation", "output_padding")]
    options = (*sizes[:3], bool(node._saved_transposed), sizes[3], int(node._saved_groups))
    bias_shape = tuple(node._saved_bias_sym_sizes_opt or ())
    return (bias_shape if all(bias_shape) else ()), options  # without a bias it may be of length 0


def fake_mode_of(tensor: Tensor) -> Any:
    """Return the mode that a fake tensor belongs to, or None for any other tensor."""
    data = tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor
    return data.fake_mode if isinstance(data, FakeTensor) else None


def new_fake_mode() -> FakeTensorMode:
    """Return a mode whose tensors have shapes and no values; constants that a model makes may be real."""
    return FakeTensorMode(allow_non_fake_inputs=True)


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


def forget_empty_hooks(tensor: Tensor) -> None:
    """Put a tensor whose last hook was removed back to the state of one that never had any."""
    if not tensor._backward_hooks:
        tensor._backward_hooks = None


# --- the optimizer's memory -----------------------------------------------------------------------------


def blank_optimizer(live: Optimizer) -> Optimizer:
    """Return an optimizer of the same class with the same attributes, without hooks and patches of its ``step``.

    It does not ask either whether a CUDA graph is being captured, which would set CUDA up.
    """
    blank: Optimizer = object.__new__(type(live))
    attributes = {name: value for name, value in vars(live).items() if name != "step"}  # patched by schedulers
    attributes |= {name: OrderedDict() for name in attributes if name.startswith("_optimizer_") and "_hooks" in name}
    attributes["_accelerator_graph_capture_health_check"] = _nothing
    vars(blank).update(attributes)
    return blank


def bare_step(kind: type[Optimizer]) -> Callable[[Optimizer], object]:
    """Return the ``step`` of a class of optimizers as it was written: no hooks, no label, no grad mode."""
    step: Any = kind.step
    while getattr(step, "__globals__", None) is vars(optimizer) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    found: Callable[[Optimizer], object] = step
    return found


def foreach_by_default(kind: type[Optimizer], parameters: Iterable[Tensor], device_type: str) -> bool:
    """Whether an optimizer of this class, told nothing, updates all its parameters at once on such a device."""
    modules = [sys.modules.get(base.__module__) for base in kind.__mro__ if issubclass(base, Optimizer)]
    asks = any(hasattr(module, "_default_to_fused_or_foreach") for module in modules if module is not optimizer)
    known = (FakeTensor, *optimizer._foreach_supported_types)
    supported = device_type in optimizer._get_foreach_kernels_supported_devices()  # type: ignore[attr-defined]
    return asks and supported and all(type(parameter) in known for parameter in parameters)


def is_item(operator: object) -> bool:
    """Whether an operator, as a dispatch mode sees it, is ``tensor.item()``."""
    return operator is torch.ops.aten._local_scalar_dense.default


def _nothing() -> None:
    pass
