"""Collectives by gloo over memory of which torch's allocator knows nothing.

gloo's own threads let go of what they have copied at some moment, and no profiler sees that. Where bytes are compared
there must be none; so it is on a GPU, where collectives take nothing from the allocator.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh

LET_GO_SECONDS = 120
"""After which gloo's threads are taken to hold an array for good."""


def octets(tensor: Tensor) -> Any:
    """The bytes of a dense tensor, in place."""
    return tensor.detach().view(torch.uint8).numpy()


def add_up(here: Any, group: Any = None) -> None:
    """Add an array of numpy's up over ranks, in place, by a thread that ends with it.

    Work of gloo's keeps the hooks on saved tensors of the thread that asks, and through them what a replay holds, until
    a thread of gloo's lets go of it: at some moment, and unseen. A thread by itself has no hooks. Nor may Python's
    collector run in it: what that ends there no profiler sees either. And this waits until gloo has let go of the
    array: the tensor over it would count as one that stands.
    """
    errors: list[Exception] = []
    references = sys.getrefcount(here)

    def run() -> None:
        try:
            distributed.all_reduce(torch.from_numpy(here), group=group)
        except Exception as error:
            errors.append(error)

    thread, collects = threading.Thread(target=run), gc.isenabled()
    gc.disable()
    thread.start()
    thread.join()
    if collects:
        gc.enable()
    if errors:
        raise errors[0]
    until = time.monotonic() + LET_GO_SECONDS
    while sys.getrefcount(here) > references:
        assert time.monotonic() < until, "gloo holds the array of a sum that is done"
        time.sleep(0.0001)


def every_rank(own: Any) -> Any:
    """Return what each rank has, in a row: the same number of octets on each."""
    every = numpy.zeros((distributed.get_world_size(), own.size), numpy.uint8)
    every[distributed.get_rank()] = own.reshape(-1)
    add_up(every)
    return every


_Group: Any = distributed.ProcessGroup
"""Its methods are overloaded by type, and only the ones that others call have to be here."""


class QuietGroup(_Group):  # type: ignore[misc]
    """A group of all ranks, or of some, for tensors in single precision. All ranks call their groups alike.

    Args:
        members: the ranks of the group; None for all.

    Attributes:
        log: is told of each collective, whichever group runs it: DTensor's caches take equal meshes for one.
    """

    log: ClassVar[list[str]] = []

    def __init__(self, members: Sequence[int] | None = None) -> None:
        self._members = [*(range(distributed.get_world_size()) if members is None else members)]
        super().__init__(self._members.index(distributed.get_rank()), len(self._members))

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        for tensor in tensors:
            self._sum(tensor, "reduce")
        return _done(tensors)

    allreduce_coalesced = allreduce

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        for every, given in zip(outputs, inputs, strict=True):
            for output, found in zip(every, self._every(octets(given.contiguous())), strict=True):
                octets(output).reshape(-1)[:] = found
        return _done(outputs)

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, given in zip(outputs, inputs, strict=True):
            self.log.append(f"gather {output.numel()}")
            octets(output).reshape(-1)[:] = self._every(octets(given)).reshape(-1)
        return _done(outputs)

    def _allgather_base(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        return self.allgather_into_tensor_coalesced([output], [given])

    all_gather_single = _allgather_base

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, given in zip(outputs, inputs, strict=True):
            self.log.append(f"scatter {given.numel()}")
            every = self._every(octets(given)).view(numpy.float32)
            own = numpy.array_split(every, self.size(), axis=1)[self.rank()]
            octets(output).reshape(-1)[:] = own.sum(0).view(numpy.uint8)
        return _done(outputs)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        for tensor in tensors:
            octets(tensor).reshape(-1)[:] = self._every(octets(tensor))[opts.rootRank]
        return _done(tensors)

    def scatter(self, outputs: list[Tensor], inputs: Sequence[list[Tensor]], opts: Any = None) -> Any:
        for number, output in enumerate(outputs):
            parts = inputs[number] if inputs else [torch.zeros_like(output)] * self.size()
            whole = numpy.concatenate([octets(each.contiguous()).reshape(-1) for each in parts])
            octets(output).reshape(-1)[:] = numpy.split(self._every(whole)[opts.rootRank], self.size())[self.rank()]
        return _done(outputs)

    def getBackendName(self) -> str:  # noqa: N802
        return "quiet"

    @property
    def group_name(self) -> str:
        return distributed.distributed_c10d._world.pg_names[self]

    @property
    def pg_name(self) -> str:
        return self.group_name

    def _every(self, own: Any) -> Any:
        return every_rank(own)[self._members]

    def _sum(self, tensor: Tensor, what: str) -> None:
        self.log.append(f"{what} {tensor.numel()}")
        every = self._every(octets(tensor)).view(numpy.float32)
        octets(tensor).reshape(-1)[:] = every.sum(0).view(numpy.uint8)


def group_of_all(log: list[str], *, quiet: bool) -> Any:
    """Return a group of all ranks, the same one each time; where it is quiet its collectives are told to this log now.

    The same, since caches of DTensor take equal meshes for one and hold the first, with the name of its group.
    """
    QuietGroup.log = log if quiet else []
    world: Any = distributed.distributed_c10d._world
    found = next((group for group, name in world.pg_names.items() if name == "1"), None)
    if found is not None:
        return found
    name = f"quiet{len(distributed.Backend.backend_list)}"
    if quiet:
        distributed.Backend.register_backend(name, lambda *given: QuietGroup(), devices=["cpu"])
    return distributed.new_group(backend=name if quiet else "gloo")


def mesh_of_four(log: list[str]) -> Any:
    """Return a mesh of two times two ranks, whose second dimension, that of layers, is quiet."""
    QuietGroup.log = log
    groups = [[distributed.new_group([first, first + 2]) for first in (0, 1)], []]
    for members in ([0, 1], [2, 3]):
        name = f"quiet{len(distributed.Backend.backend_list)}"
        distributed.Backend.register_backend(name, lambda *_, members=members: QuietGroup(members), devices=["cpu"])
        groups[1].append(distributed.new_group(members, backend=name))
    rank = distributed.get_rank()
    own = [groups[0][rank % 2], groups[1][rank // 2]]
    every = torch.tensor([[0, 1], [2, 3]])
    return DeviceMesh.from_group(own, "cpu", mesh=every, mesh_dim_names=("shards", "layers"))


def _done(value: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(value)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future)
