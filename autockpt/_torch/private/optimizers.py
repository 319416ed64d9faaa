"""What counting the memory of optimizers needs: their step without its hooks."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer, optimizer


def blank_optimizer(live: Optimizer) -> Optimizer:
    """Return an optimizer of the same class with the same attributes, without hooks and patches of its ``step``.

    Its step does not check whether a CUDA graph is being captured either: that check would initialize CUDA.
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
    """Whether an optimizer of this class updates all its parameters at once on such a device, by default."""
    modules = [sys.modules.get(base.__module__) for base in kind.__mro__ if issubclass(base, Optimizer)]
    asks = any(hasattr(module, "_default_to_fused_or_foreach") for module in modules if module is not optimizer)
    known = (FakeTensor, *optimizer._foreach_supported_types)
    supported = device_type in optimizer._get_foreach_kernels_supported_devices()  # type: ignore[attr-defined]
    return asks and supported and all(type(parameter) in known for parameter in parameters)


def refuse_pointers(tensor: Tensor) -> None:
    """Make it an error to ask for the address of a tensor without memory: a kernel would write to address 0."""
    if tensor.is_meta and tensor.layout == torch.strided:
        torch._C._set_throw_on_mutable_data_ptr(tensor)


def is_item(operator: object) -> bool:
    """Whether an operator, as a dispatch mode sees it, is ``tensor.item()``."""
    return operator is torch.ops.aten._local_scalar_dense.default


def _nothing() -> None:
    pass
