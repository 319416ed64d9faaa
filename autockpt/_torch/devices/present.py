"""Which devices this process has and uses, whatever device a model is on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from .. import private


class Described(NamedTuple):
    """An accelerator's properties. If it cannot tell its free bytes, they are None and `error` is what it raised."""

    name: str
    capability: str
    total_bytes: int
    free_bytes: int | None
    error: BaseException | None = None


def described() -> list[Described]:
    """Return the properties of each accelerator."""
    return [_described(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def _described(index: int) -> Described:
    found = torch.cuda.get_device_properties(index)
    capability = f"{found.major}.{found.minor}"
    try:
        free_bytes = torch.cuda.mem_get_info(index)[0]
    except RuntimeError as error:  # it has no memory left for a context, or it is broken
        return Described(found.name, capability, found.total_memory, None, error)
    return Described(found.name, capability, found.total_memory, free_bytes)


def built_for() -> str | None:
    """Return the version of CUDA or ROCm that torch was built with, None if it was built without."""
    return torch.version.cuda or torch.version.hip


def allocator() -> str | None:
    """Return the name of torch's allocator for accelerators; None if there is no accelerator."""
    return torch.cuda.get_allocator_backend() if torch.cuda.is_available() and torch.cuda.device_count() else None


def kinds() -> tuple[str, ...]:
    """Return the kinds of devices in use, the CPU first."""
    return ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)


def device_in_use() -> torch.device:
    """Return the device to measure if none is named: the current CUDA device once CUDA is in use, else the CPU."""
    return torch.device("cuda") if torch.cuda.is_available() and torch.cuda.is_initialized() else torch.device("cpu")


def best_device() -> torch.device:
    """Return the fastest device that is there."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def also_drawn_from() -> tuple[torch.device, ...]:
    """Return devices from whose generators an operator may draw even if none of its tensors is there."""
    return (torch.device("cuda", torch.cuda.current_device()),) if torch.cuda.is_initialized() else ()


def generators() -> list[torch.Generator]:
    """Return the generators of all devices in use."""
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        current = torch.cuda.current_device()
        every = enumerate(torch.cuda.default_generators)
        found += [each for index, each in every if index == current or torch.cuda.memory_reserved(index)]
    return found


def go_to(stream: private.StreamNumbers) -> None:
    """Let this thread's operators run in `stream` from now on, after all work that is queued in the present stream."""
    before, following = torch.cuda.current_stream(), private.stream_of(stream)
    following.wait_stream(before)
    torch.cuda.set_stream(following)


@contextmanager
def in_stream(stream: private.StreamNumbers | None) -> Iterator[None]:
    """Let this thread's operators run in `stream` meanwhile, in the order of this thread; None is the present one."""
    before = private.current_stream()
    if stream is None or before is None or stream == before:
        yield
        return
    go_to(stream)
    try:
        yield
    finally:
        go_to(before)


def read_in(stream: private.StreamNumbers, tensors: Iterable[torch.Tensor]) -> None:
    """Tell the allocator that a stream reads these tensors. They may have been allocated in another stream."""
    there = [tensor for tensor in tensors if not tensor.is_cpu]
    if there:
        reader = private.stream_of(stream)
        for tensor in there:
            tensor.record_stream(reader)


current_stream = private.current_stream
"""Return the stream in which this thread's operators run on the current accelerator; None if none is in use."""

captures_graph = private.captures_graph
"""Say whether a CUDA graph is being captured, so that work is only recorded now and runs later."""
