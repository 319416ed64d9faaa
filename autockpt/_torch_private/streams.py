"""The current stream of a CUDA device: which it is, and whether what is asked of it is written down and done later."""

from __future__ import annotations

from typing import TypeAlias

import torch

# Frames ask in every call. A process without CUDA is told by an attribute, without a call.
_cuda = torch.cuda

StreamNumbers: TypeAlias = tuple[int, int, int]
"""A stream as torch takes it apart: its own number, that of its device, and that of the device's kind."""


def captures_graph() -> bool:
    """Whether a CUDA graph is being captured in the current stream."""
    return _cuda._initialized and _cuda.is_initialized() and bool(_cuda.is_current_stream_capturing())


def current_stream() -> StreamNumbers | None:
    """Return the current stream of the current CUDA device: torch's object for it costs ten times as much.

    None where CUDA is not in use.
    """
    if not _cuda._initialized or not _cuda.is_initialized():
        return None
    found: StreamNumbers = torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
    return found


def stream_of(numbers: StreamNumbers) -> torch.cuda.Stream:
    """Return a stream that `current_stream` told of."""
    stream, device, kind = numbers
    return torch.cuda.Stream(stream_id=stream, device_index=device, device_type=kind)
