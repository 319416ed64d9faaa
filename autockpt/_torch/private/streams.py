"""The current stream of a CUDA device: which it is, and whether a CUDA graph is being captured in it."""

from __future__ import annotations

from typing import TypeAlias

import torch

# Frames ask in every call. In a process without CUDA, an attribute answers without a call.
_cuda = torch.cuda

StreamNumbers: TypeAlias = tuple[int, int, int]
"""A stream as torch takes it apart: its own number, that of its device, and that of the device's kind."""


def captures_graph() -> bool:
    """Whether a CUDA graph is being captured in the current stream."""
    return _cuda._initialized and _cuda.is_initialized() and bool(_cuda.is_current_stream_capturing())


def current_stream() -> StreamNumbers | None:
    """Return the current stream of the current CUDA device; None if CUDA is not in use.

    Torch's own object for the stream costs ten times as much.
    """
    if not _cuda._initialized or not _cuda.is_initialized():
        return None
    found: StreamNumbers = torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
    return found


def stream_of(numbers: StreamNumbers) -> torch.cuda.Stream:
    """Return torch's object for a stream that `current_stream` returned."""
    stream, device, kind = numbers
    return torch.cuda.Stream(stream_id=stream, device_index=device, device_type=kind)
