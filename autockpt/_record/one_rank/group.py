"""A fake process group, whose other ranks are not there: collectives wait for nobody, and bring no values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..._data.errors import NotApplicable, ProfilingError
from ..._torch import private
from ...solvers.units import shown

OTHERS = (
    "this process is rank {rank} of a process group of {ranks} ({backend}), and planning for {asked} ranks opens one "
    "of its own in which the others are not there. Ask before init_process_group, or in a process by itself."
)


@contextmanager
def world_of(ranks: object) -> Iterator[None]:
    """Inside the block, make this process rank 0 of a fake group of so many ranks.

    If the caller has opened a fake group of that size, that one is used, and it stays open.

    Raises:
        NotApplicable: torch has no process groups here, or this process is in another one already.
        ProfilingError: `ranks` is not a whole number from 1 on.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ProfilingError(f"world_size is {shown(ranks)}; it must be a whole number of ranks, 1 or more")
    if not torch.distributed.is_available():
        raise NotApplicable("this build of torch has no torch.distributed, so nothing can be sharded over ranks here.")
    if private.process_group():
        size, backend = private.group_size(), private.group_backend()
        if backend != private.FAKE or size != ranks:
            rank = private.own_rank()
            raise NotApplicable(OTHERS.format(rank=rank, ranks=size, backend=backend, asked=ranks))
        yield
        return
    # What a launcher sets: a build that chooses its device by LOCAL_RANK finds it.
    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}"}
    before = {name: os.environ.get(name) for name in told}
    private.open_fake_group(ranks)
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        if private.process_group():  # the build may have left it
            private.close_group()
