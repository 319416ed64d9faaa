"""A world of ranks that are not there, in one process: torch's fake process group, and a model of one of its ranks.

rank 0 of 8   gathers from nobody ─▶ a buffer of the right size ─▶ the same Python of FSDP2 as on eight ranks
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .sharded import is_distributed, process_group

FAKE = "fake"
"""What torch calls the backend whose collectives bring nothing."""


def open_fake_group(size: int) -> None:
    """Make this process rank 0 of so many, the others of which are not there: its collectives wait for nobody."""
    # Registers the backend; a module for tests by its place, and what torch's own tools for planning use.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group(FAKE, rank=0, world_size=size, store=FakeStore())


def close_group() -> None:
    """Leave the process group."""
    torch.distributed.destroy_process_group()


def group_backend() -> str:
    """Return the name of the backend of the default process group."""
    return str(torch.distributed.get_backend())


def group_size() -> int:
    """Return how many ranks the default process group has."""
    return torch.distributed.get_world_size()


def shard(module: nn.Module) -> None:
    """Make a module a unit of FSDP2."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(module)


def replace_tensors(model: nn.Module, new: Callable[[Tensor], Tensor]) -> None:
    """Put other tensors in the place of a model's parameters, gradients and buffers, of shards those that are here.

    Units of FSDP2 take them as their own. Parameters that lie on several ranks stay the same objects.

    Args:
        model: the model; none of its units is gathered.
        new: makes one tensor of the same size of each that has memory.
    """
    with torch.no_grad(), warnings.catch_warnings():
        # Units compare addresses, which tensors without values have none of: all of them are new to a unit.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        model._apply(lambda tensor: _rewrapped(tensor, new))


def _rewrapped(tensor: Any, new: Callable[[Tensor], Tensor]) -> Any:
    if not is_distributed(tensor):
        return new(tensor)
    return type(tensor)(new(tensor._local_tensor), tensor._spec, requires_grad=tensor.requires_grad)


@contextmanager
def told_of_resizes(tell: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Tell of storages that Python gives another size inside the block, as FSDP2 does: no operator tells of that.

    Args:
        tell: is given the storage, and the bytes that it had.
    """
    if not process_group():
        yield
        return
    plain = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        found = plain(storage, size)
        tell(storage, before)
        return found

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del torch.UntypedStorage.resize_
