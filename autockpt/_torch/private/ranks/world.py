"""One rank of several in one process, without the others: torch's fake process group, and a model on its rank 0.

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
"""Torch's name for the backend whose collectives bring no values."""


def open_fake_group(size: int) -> None:
    """Make this process rank 0 of so many. The others are not there, and its collectives wait for nobody."""
    # The import registers the backend. It is among torch's modules for tests, but torch's own planning tools use it.
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
    """Replace the tensors of a model's parameters, gradients and buffers; of a DTensor its local tensor.

    Units of FSDP2 take them as their own. Parameters that lie on several ranks stay the same objects.

    Args:
        model: the model; none of its units is gathered.
        new: given each tensor that has memory, returns one of the same size.
    """
    with torch.no_grad(), warnings.catch_warnings():
        # Units compare addresses to find what is new. Tensors without values have none, so all of them count as new.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        model._apply(lambda tensor: _rewrapped(tensor, new))


def _rewrapped(tensor: Any, new: Callable[[Tensor], Tensor]) -> Any:
    if not is_distributed(tensor):
        return new(tensor)
    return type(tensor)(new(tensor._local_tensor), tensor._spec, requires_grad=tensor.requires_grad)


@contextmanager
def told_of_resizes(tell: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Inside the block, tell of each storage that Python code resizes, as FSDP2 does: no operator shows that.

    Args:
        tell: is given the storage, and the bytes that it had before.
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
