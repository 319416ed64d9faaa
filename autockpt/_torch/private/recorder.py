"""What the recorder needs: autograd's state, fake tensors, caches."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode

CLOCK_KHZ = 1_500_000
"""The clock assumed for a device that does not tell its own."""


def load_compiler() -> None:
    """Import what torch imports itself when a mode first sees an operator.

    The import takes two hundred frames of Python's stack, and a model deep in its forward may not have that many left.
    """
    import torch._dynamo  # noqa: F401


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


def plain_subclasses() -> AbstractContextManager[None]:
    """Return a context in which functions treat tensors of subclasses as plain ones. Function modes still see them."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return context


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


def device_asked(op: Any, given: tuple[Any, ...]) -> torch.device | None:
    """Return what a fake tensor says where an operator asks for its device; None for any other operator or tensor.

    C++ asks about twice an operator. The way through each mode that is on has the same end, and took a seventh of a
    recording of fake tensors.
    """
    if op is torch.ops.prim.device.default and type(given[0]) is FakeTensor:
        return cast("torch.device", FakeTensor.__torch_dispatch__(op, (FakeTensor,), given))
    return None


def new_fake_mode() -> FakeTensorMode:
    """Return a mode whose tensors have shapes and no values; operators may be given real tensors (constants) too."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep fake tensors from logging the errors that they raise."""
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


COMPILED_CALL = "_compiled_call_impl"
"""The attribute that ``module.compile()`` sets. torch calls it in the place of ``forward`` and of the hooks."""


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `module` was compiled, by ``module.compile()`` or ``torch.compile(module)``; it may be sharded since.

    FSDP2 gives what it shards a class of its own, derived from that of the module.
    """
    return module._compiled_call_impl is not None or any(
        each.__name__ == "OptimizedModule" for each in type(module).mro()
    )


def compiled_around(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return what a module was compiled to as a whole: itself, or what ``torch.compile`` returned; None for neither.

    Also what it returned of the DistributedDataParallel around the module.
    """
    if is_compiled(module):
        return module
    kind: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    everything = () if kind is None else gc.get_referrers(kind)
    found = (each for each in everything if type(each) is kind)
    return next((each for each in found if any(inner is module for inner in _with_inner(each._orig_mod))), None)


def _with_inner(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield a module, and the one inside it where it is DistributedDataParallel."""
    yield module
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        inner: Any = module.module
        yield inner


def active_data_parallel() -> torch.nn.Module | None:
    """Return the DistributedDataParallel whose forward is running, None if there is none."""
    active: torch.nn.Module | None = torch.nn.parallel.DistributedDataParallel._active_ddp_module
    return active


@contextmanager
def as_if_running(wrapper: torch.nn.parallel.DistributedDataParallel) -> Iterator[None]:
    """Have a DistributedDataParallel be taken for the one whose forward is running, inside the block."""
    with wrapper._inside_ddp_forward():
        yield


def after_backward(callback: Callable[[], None]) -> None:
    """Have `callback` called when the backward that is running now is over."""
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
    """Free the pinned memory that torch keeps for later requests, if this torch can."""
    empty = getattr(torch._C, "_host_emptyCache", None)  # a torch with CUDA has this
    empty = empty or getattr(torch.accelerator, "empty_host_cache", None)  # a newer torch has this, for any device
    if empty is not None and torch.accelerator.is_available():
        empty()
