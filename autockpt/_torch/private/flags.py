"""Flags that decide which kernels run, and in which precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# Looked up once: frames read all of these between operators, which have evicted Python's objects from the CPU's caches.
_C, _cuda = torch._C, torch.cuda


def _matmul_precision() -> str | None:
    """Return the precision of matrix products by the older interface; None if the newer interface contradicts it."""
    try:
        return str(_C._get_float32_matmul_precision())
    except RuntimeError:
        return None


def _set_matmul_precision(precision: str | None) -> None:
    if precision is not None:
        _C._set_float32_matmul_precision(precision)


def _precision(backend: str, operators: str) -> tuple[Any, Any]:
    return (
        functools.partial(_C._get_fp32_precision_getter, backend, operators),
        functools.partial(_C._set_fp32_precision_setter, backend, operators),
    )


_FLAGS: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    # Off in a backward that a method of a tensor subclass has begun.
    (_C._get_torch_function_state, _C._set_torch_function_state),  # type: ignore[attr-defined]
    (_C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    (_C._get_math_sdp_enabled, _C._set_sdp_use_math),
    (_C._get_overrideable_sdp_enabled, _C._set_sdp_use_overrideable),
    (_C._get_sdp_priority_order, _C._set_sdp_priority_order),
    (_C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
    (_C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic),
    (_C._get_deterministic_algorithms, _C._set_deterministic_algorithms),
    (_matmul_precision, _set_matmul_precision),  # before those below, which it sets too
    _precision("mkldnn", "matmul"),
    _precision("mkldnn", "conv"),
]
_CUDA_FLAGS: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
    (_C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    (_C._get_cudnn_sdp_enabled, _C._set_sdp_use_cudnn),
    (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    _precision("cuda", "matmul"),
    _precision("cuda", "conv"),
    _precision("cuda", "rnn"),
]
_READ_FLAGS = [_C._get_float32_matmul_precision if read is _matmul_precision else read for read, _ in _FLAGS]


def flags() -> list[Any]:
    """Return the flags that decide which kernels run, in which precision, and whether ``__torch_function__`` runs."""
    try:
        found = [read() for read in _READ_FLAGS]
    except RuntimeError:  # see `_matmul_precision`
        found = [read() for read, _ in _FLAGS]
    if _cuda._initialized and _cuda.is_initialized():  # the first is only an attribute, and saves the call
        found += [read() for read, _ in _CUDA_FLAGS]
    return found


def set_flags(wanted: list[Any]) -> None:
    """Set the flags to `wanted`, which `flags` has returned."""
    if flags() == wanted:
        return
    warn_only = _C._get_deterministic_algorithms_warn_only()
    for (read, write), value in zip((*_FLAGS, *_CUDA_FLAGS), wanted, strict=False):
        if read() == value:
            continue
        if read is _C._get_deterministic_algorithms:
            _C._set_deterministic_algorithms(value, warn_only=warn_only)
        else:
            write(value)
