"""Which devices this process uses, whatever a model lies on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from .. import _torch_private as private


class Described(NamedTuple):
    """A device as it describes itself; None is free where it does not answer, and `error` is what it raised."""

    name: str
    capability: str
    total_bytes: int
    free_bytes: int | None
    error: BaseException | None = None


def described() -> list[Described]:
    """Return what each accelerator says of itself."""
    return [_described(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def _described(index: int) -> Described:
    found = torch.cuda.get_device_properties(index)
    capability = f"{found.major}.{found.minor}"
    try:
        free_bytes = torch.cuda.mem_get_info(index)[0]
    except RuntimeError as error:  # all of its memory is taken, or it is broken
        return Described(found.name, capability, found.total_memory, None, error)
    return Described(found.name, capability, found.total_memory, free_bytes)


def built_for() -> str | None:
    """Return the version of CUDA or ROCm that torch was built with, None if it was built without."""
    return torch.version.cuda or torch.version.hip


def allocator() -> str | None:
    """Return how torch allocates on accelerators; None where there is none."""
    return torch.cuda.get_allocator_backend() if torch.cuda.is_available() and torch.cuda.device_count() else None


def kinds() -> tuple[str, ...]:
    """Return the kinds of devices in use, the CPU first."""
    return ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)


def device_in_use() -> torch.device:
    """Return the device that is measured where nobody says which: the current CUDA device, once one is in use."""
    return torch.device("cuda") if torch.cuda.is_available() and torch.cuda.is_initialized() else torch.device("cpu")


def best_device() -> torch.device:
    """Return the device that is there and fastest."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def also_drawn_from() -> tuple[torch.device, ...]:
    """Return devices from which an operator may draw random numbers without being given a tensor that lies there."""
    return (torch.device("cuda", torch.cuda.current_device()),) if torch.cuda.is_initialized() else ()


def generators() -> list[torch.Generator]:
    """Return the generators of all devices in use."""
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        current = torch.cuda.current_device()
        every = enumerate(torch.cuda.default_generators)
        found += [each for index, each in every if index == current or torch.cuda.memory_reserved(index)]
    return found


def current_stream() -> private.StreamNumbers | None:
    """Return the stream in which operators of this thread run on the current accelerator; None where none is in use."""
    return private.current_stream() if torch.cuda.is_initialized() else None


def go_to(stream: private.StreamNumbers) -> None:
    """Let operators of this thread run in `stream` from now on, after all that they asked of the present one."""
    before, following = torch.cuda.current_stream(), private.stream_of(stream)
    following.wait_stream(before)
    torch.cuda.set_stream(following)


def read_in(stream: private.StreamNumbers, tensors: Iterable[torch.Tensor]) -> None:
    """Tell the allocator that a stream reads tensors, which may have been made in another one."""
    there = [tensor for tensor in tensors if not tensor.is_cpu]
    if there:
        reader = private.stream_of(stream)
        for tensor in there:
            tensor.record_stream(reader)


def captures_graph() -> bool:
    """Whether what is asked of a device now is written down and done later."""
    return private.captures_graph()
