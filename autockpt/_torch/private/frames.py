"""What frames need: versions, storages, generators, and which modes and transforms are on around a forward."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.nn.utils.parametrize
import torch.utils._pytree as pytree
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd import forward_ad

from .modes import Hooks, outer_hooks
from .streams import captures_graph

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Tensor)


# Frames call the functions below between operators, which have evicted Python's objects from the CPU's caches. Every
# attribute on the way to a function is then read from memory. So each is looked up once, here.
_C, _autograd, _functorch = torch._C, torch._C._autograd, torch._C._functorch
_parametrize = torch.nn.utils.parametrize

set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled
"""Switch gradients on or off in this thread (the context manager costs five times as much)."""


def never_compiled(function: F) -> F:
    """Keep the compiler from tracing `function` and what it calls: autograd calls hooks from compiled code too.

    `torch.compiler.disable` does the same, but imports the compiler, which takes a second.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def foreign_checkpoint_active() -> bool:
    """Whether what runs in this thread recomputes by itself, innermost.

    That is a region of `torch.utils.checkpoint`, recording or recomputing, or a function under `autockpt.recompute`.
    """
    hooks = outer_hooks()
    return hooks is not None and (getattr(hooks[0], "__module__", None) == _CHECKPOINT or bool(_function_of(hooks)))


def recomputed_function() -> str:
    """Return the name of the function under `autockpt.recompute` that runs in this thread, innermost; else nothing."""
    hooks = outer_hooks()
    return "" if hooks is None else _function_of(hooks)


def _function_of(hooks: Hooks) -> str:
    return getattr(getattr(hooks[0], "__self__", None), "recomputed_function", "")


def inside_checkpoint() -> bool:
    """Whether this thread runs a function inside `torch.utils.checkpoint`, reentrant or not.

    The reentrant one sets no hooks: it is found by its frame, where gradients are off. O(depth of the stack).
    """
    if foreign_checkpoint_active():
        return True
    frame = None if torch.is_grad_enabled() else sys._getframe(1)
    while frame is not None and frame.f_code is not _REENTRANT:
        frame = frame.f_back
    return frame is not None


def transforms_active() -> bool:
    """Whether saved-tensors hooks are disabled, or a `torch.func` transform or forward-mode level is active."""
    return (
        not _autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        or _functorch.maybe_current_level() is not None
        or forward_ad._current_level >= 0
    )


def runs_plain(*, in_function: bool = False) -> bool:
    """Whether nothing is on under which a forward could not be replayed by itself.

    A function under `autockpt.recompute` has a frame of its own. Another one may have a frame inside, if `in_function`;
    calls of a plan may not.

    Frames ask this in every call. So it repeats the checks of the functions in this file instead of calling them.
    """
    return (
        _autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        and _functorch.maybe_current_level() is None
        and forward_ad._current_level < 0
        and _C._get_tracing_state() is None
        and _parametrize._cache_enabled <= 0  # a replay would compute the cached weights anew
        and not captures_graph()
        and (
            (hooks := outer_hooks()) is None
            or (getattr(hooks[0], "__module__", None) != _CHECKPOINT and (in_function or not _function_of(hooks)))
        )
    )


_CHECKPOINT = "torch.utils.checkpoint"

_REENTRANT = torch.utils.checkpoint.CheckpointFunction.forward.__code__


any_autocast_enabled: Callable[[], bool] = _C._is_any_autocast_enabled
"""Whether autocast is on for any device type in this thread."""

_version_of: Callable[[Tensor], int] = operator.attrgetter("_version")


def version(tensor: Tensor) -> int:
    """Return how often `tensor` was changed in place; -1 for an inference tensor, which does not count."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


_EMPTY = torch.empty(0)


def version_counter(tensor: Tensor) -> Tensor:
    """Return a tensor without memory whose `version` goes on being that of `tensor`."""
    counter = tensor.detach()
    counter.data = _EMPTY
    return counter


def versions(tensors: list[Tensor]) -> list[int]:
    """Return the `version` of each, in one go."""
    try:
        return list(map(_version_of, tensors))
    except RuntimeError:
        return [version(tensor) for tensor in tensors]


def preserved_version(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context in which changing `tensor` in place is not counted: for putting a value back."""
    if version(tensor) < 0:
        return nullcontext()
    context: AbstractContextManager[None] = torch.autograd._unsafe_preserve_version_counter(tensor)  # type: ignore[attr-defined]
    return context


def graph_is_alive(parameter: Tensor) -> bool:
    """Whether some graph leads to a parameter: as long as one does, the parameter's accumulator lives and holds it."""
    return held_elsewhere(parameter)


def held_elsewhere(tensor: Tensor) -> bool:
    """Whether something in C++ holds a tensor besides the Python object that was given."""
    count: int = tensor._use_count()  # type: ignore[attr-defined]
    return count > 1


def held_alone(storage: torch.UntypedStorage) -> bool:
    """Whether no tensor has a storage any more, and nothing in C++ holds it besides its Python object."""
    count: int = _C._storage_Use_Count(storage._cdata)
    return count == 1


def parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors that have memory: of a wrapper, such as a quantized weight, the tensors inside it."""
    found: list[Tensor] = []
    for tensor in tensors:
        flatten = None if type(tensor) in _WHOLE else getattr(tensor, "__tensor_flatten__", None)
        try:
            inside = [tensor] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
        except AttributeError:  # a wrapper that is only being made
            inside, flatten = [tensor], None
        # A DTensor's mesh is among what is inside.
        found += inside if flatten is None else parts(each for each in inside if isinstance(each, Tensor))
    return found


_WHOLE = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def local(tensor: Tensor) -> Tensor:
    """Return the tensor that has the memory: a DTensor's local tensor, or the one inside an AsyncCollectiveTensor."""
    while type(tensor) not in _WHOLE:
        kind, inner = type(tensor).__name__, None
        if kind == "DTensor":
            inner = tensor._local_tensor  # type: ignore[attr-defined]
        elif kind == "AsyncCollectiveTensor":
            inner = tensor.elem  # type: ignore[attr-defined]
        if inner is None:
            break
        tensor = inner
    return tensor


def here(tensor: Tensor) -> Tensor:
    """Return a tensor once its bytes are there; of an AsyncCollectiveTensor the tensor inside, after waiting for it."""
    if type(tensor) in _WHOLE:
        return tensor
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        return here(tensor.trigger_wait())  # type: ignore[attr-defined]
    inner = tensor._local_tensor if type(tensor).__name__ == "DTensor" else tensor  # type: ignore[attr-defined]
    return tensor if inner is tensor else here(inner)


def storage_key(tensor: Tensor) -> int:
    """Return a number that is equal for two live tensors exactly if they share storage; 0 if there is no storage."""
    try:
        whole = tensor if type(tensor) in _WHOLE else local(tensor)  # without a call, nearly always
        key: int = whole.untyped_storage()._cdata
    except RuntimeError:  # sparse and other layouts without storage, and tensors of transforms
        return 0
    return key


def sizes(tensor: Tensor) -> tuple[Any, ...]:
    """Return the shape of a tensor; of a strided nested one, which has none, the shapes of its rows."""
    if tensor.is_nested and tensor.layout is torch.strided:
        return tuple(map(tuple, tensor._nested_tensor_size().tolist()))
    return tuple(Tensor.size(tensor))  # a subclass may have a `shape` of its own


keeps_graph: Callable[[], bool] = _autograd._get_current_graph_task_keep_graph
"""Say whether the backward that this thread is in keeps its graph for another; True if it is in none."""


def keeping_backward() -> int:
    """Return the number of the backward that this thread is in, if it keeps its graph for another; else -1."""
    return _C._current_graph_task_id() if keeps_graph() else -1


def global_hooks() -> dict[str, dict[int, Any]] | None:
    """Return the hooks that run around every module's forward, under the names of a module's own; None for none."""
    hooks = torch.nn.modules.module
    if not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks:
        return None
    return {
        "_forward_hooks": dict(hooks._global_forward_hooks),
        "_forward_pre_hooks": dict(hooks._global_forward_pre_hooks),
        "_forward_hooks_with_kwargs": dict(hooks._global_forward_hooks_with_kwargs),
        "_forward_hooks_always_called": dict(hooks._global_forward_hooks_always_called),
    }


def is_tracing() -> bool:
    """Whether `torch.jit.trace` is running."""
    return _C._get_tracing_state() is not None


def parametrizations_are_cached() -> bool:
    """Whether `torch.nn.utils.parametrize.cached` is on, whose cache knows modules by their addresses."""
    return _parametrize._cache_enabled > 0


def geometry(tensor: Tensor) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return shape and strides; no strides for layouts that have none."""
    try:
        return tensor.shape, tensor.stride()
    except RuntimeError:  # compressed sparse layouts; strided nested tensors have no shape either
        return sizes(tensor), ()


def tensor_without_storage(
    kind: type[T],
    look: tuple[tuple[Any, ...], tuple[int, ...], int, torch.dtype],
    device: torch.device,
    *,
    requires_grad: bool = False,
) -> T:
    """Return a tensor of the subclass `kind` that has no memory.

    Args:
        kind: the subclass.
        look: shape, strides, offset of the first element, and dtype.
        device: the device that it reports.
        requires_grad: whether it requires a gradient.
    """
    shape, stride, offset, dtype = look
    new: T = Tensor._make_wrapper_subclass(
        kind, shape, stride, offset, dtype=dtype, device=device, requires_grad=requires_grad
    )
    return new


plain_torch_function = _C._disabled_torch_function_impl
"""For subclasses whose instances torch functions treat as any tensor."""


tries_kernels: Callable[[], bool] = _C._get_cudnn_benchmark
"""Say whether cuDNN tries which kernel is fastest. It tries in each thread anew, so a replay may run another kernel."""

try_kernels: Callable[[bool], None] = _C._set_cudnn_benchmark
"""Have cuDNN try which kernel is fastest, or not."""


def container_handlers(
    kind: type,
) -> tuple[Callable[[Any], tuple[list[Any], Any]], Callable[[list[Any], Any], Any]] | None:
    """Return how torch's pytree takes containers of exactly `kind` apart and rebuilds them; None if it cannot."""
    node = pytree.SUPPORTED_NODES.get(kind)
    return None if node is None else (node.flatten_fn, node.unflatten_fn)


def default_generator(device: torch.device) -> torch.Generator | None:
    """Return the generator that random operators on `device` draw from; None if the device has none of its own."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        generator: torch.Generator = torch.mps._get_default_mps_generator()
        return generator
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    index = device.index or 0
    return generators[index] if index < len(generators) else None
