"""How the elements of a strided tensor lie in memory, and the bytes there."""

from __future__ import annotations

import ctypes

import torch

from .._torch import private


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if tensor.is_contiguous():  # as nearly always
        return tensor.nbytes
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no gaps between its elements. Queries that share a tensor with keys have some."""
    return tensor.is_contiguous() or span_bytes(tensor) <= tensor.nbytes


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the host, in place."""
    return memoryview((ctypes.c_char * span_bytes(tensor)).from_address(tensor.data_ptr())).cast("B")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, in place, as a tensor."""
    begin, empty = tensor.storage_offset() * tensor.itemsize, torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), begin, (span_bytes(tensor),), (1,))


def row_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's whole storage, in place, as a tensor."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def bytes_now(tensor: torch.Tensor) -> bytes:
    """Return a copy of a tensor's bytes, gaps between its elements too; nothing is allocated on the device."""
    host = tensor if tensor.is_cpu else flat(tensor).cpu()  # has to live until its bytes are read
    return bytes(bytes_of(host))


def put_bytes(tensor: torch.Tensor, content: bytes) -> None:
    """Write bytes into a tensor without raising its version counter."""
    if tensor.is_cpu:
        bytes_of(tensor)[:] = content
    else:
        flat(tensor).copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def told_by_bytes(tensor: torch.Tensor) -> bool:
    """Whether bytes, type, sizes and strides describe a tensor completely."""
    return (
        (type(tensor) in (torch.Tensor, torch.nn.Parameter) or private.fake_mode_of(tensor) is not None)
        and tensor.layout == torch.strided
        and not (tensor.is_neg() or tensor.is_nested or tensor.is_quantized or tensor._is_zerotensor())
    )
