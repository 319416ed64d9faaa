"""What lies on several ranks: the store of a process group, units of FSDP2, and stages of pipelines.

A unit of FSDP2 has each of its parameters twice:

at rest     sharded_param      a DTensor, whose local tensor has this rank's bytes
gathered    _unsharded_param   the same object each time; its storage has no bytes in between
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..frames import parts


def process_group() -> bool:
    """Whether this process has a process group."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def default_store() -> Any:
    """Return the store through which the processes of the default group found each other."""
    return torch.distributed.distributed_c10d._get_default_store()


def any_units() -> bool:
    """Whether any module of this process is, or was, a unit of FSDP2: the class of each is derived from FSDPModule."""
    kind = _kind_of_units()
    return kind is not None and bool(type.__subclasses__(kind))


def unit_of(module: nn.Module) -> Any:
    """Return the state of the unit of FSDP2 that a module is, or is a part of; None for any other module."""
    kind = _kind_of_units()
    return module._get_fsdp_state() if kind is not None and isinstance(module, kind) else None


def _kind_of_units() -> Any:
    # Another thread may be importing the module just now: then the class is not there yet.
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)


def param_groups(unit: Any) -> list[Any]:
    """Return the groups of parameters that a unit gathers together."""
    groups = getattr(unit, "_fsdp_param_groups", None)
    if groups is None:  # torch 2.11 and before
        groups = [unit._fsdp_param_group]
    return [each for each in groups if each is not None]


def unit_ranks(unit: Any) -> set[int]:
    """Return the ranks over which the parameters of a unit lie."""
    return {rank for group in param_groups(unit) for rank in group.mesh_info.mesh.mesh.flatten().tolist()}


def parameters_of(unit: Any) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield each parameter of a unit at rest and gathered; None for the latter if it was never gathered."""
    for group in param_groups(unit):
        for each in group.fsdp_params:
            yield each.sharded_param, getattr(each, "_unsharded_param", None)


def waiting_gradients(unit: Any) -> list[Tensor]:
    """Return the gradients that a unit holds until it is to reduce them.

    Whole ones (`set_requires_gradient_sync`), or shards that copies of the unit do not share yet
    (`set_requires_all_reduce`).
    """
    found: dict[int, Tensor] = {}  # by storage: torch 2.15 has the same gradient under both names
    for group in param_groups(unit):
        for each in group.fsdp_params:
            gathered = getattr(each, "_unsharded_param", None)
            for gradient in (None if gathered is None else gathered.grad, each.unsharded_accumulated_grad):
                if gradient is not None:
                    found[gradient.untyped_storage()._cdata] = gradient
        if (shard := group._partial_reduce_output) is not None:
            found[shard.untyped_storage()._cdata] = shard
    return list(found.values())


def buffers_of(unit: Any) -> list[Tensor]:
    """Return the outputs of a unit's all-gathers that are still held: to be copied to parameters, or just copied."""
    states = [unit._comm_ctx.all_gather_state] if getattr(unit._comm_ctx, "all_gather_state", None) else []
    results = [each.all_gather_result for each in states]
    results += [group._all_gather_result for group in param_groups(unit)]
    return [each.all_gather_output for each in results if each is not None and each.all_gather_output is not None]


def unit_switches(unit: Any) -> tuple[object, ...]:
    """Return what decides how much a unit holds in a step: whether it reduces, and when it frees its parameters."""
    return tuple(
        (group.reduce_grads, group.all_reduce_grads, group.reshard_after_backward, group._reshard_after_forward)
        for group in param_groups(unit)
    )


def is_offloaded(unit: Any) -> bool:
    """Whether the shards of a unit lie on the host."""
    return any(each.offload_to_cpu for group in param_groups(unit) for each in group.fsdp_params)


def gathers_by_itself(unit: Any) -> bool:
    """Whether shards of a unit define how they are gathered, as those of float8 do."""
    shards = parts(shard for shard, _ in parameters_of(unit))
    return any(hasattr(each, "fsdp_pre_all_gather") for each in shards)


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor lies on several ranks (DTensor)."""
    return type(tensor).__name__ == "DTensor"


def is_distributed_at_times(tensor: Tensor) -> bool:
    """Whether a parameter lies on several ranks, now or in forward only, as layers' do in DistributedDataParallel."""
    return is_distributed(tensor) or hasattr(tensor, "_st_info")


def stages() -> list[Any]:
    """Return the stages of pipelines that this process has."""
    kind = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None)
    if kind is None:
        return []
    # Found by what refers to their classes. A search of all objects would meet proxies, and objects that other threads
    # are just making.
    every = [kind]
    for each in every:
        every += [derived for derived in type.__subclasses__(each) if derived not in every]
    return [thing for thing in gc.get_referrers(*every) if issubclass(type(thing), kind)]


def asks_for_shapes(stage: Any) -> bool:
    """Whether the forward of a stage that runs now only infers the shapes of its outputs.

    Its first forward does, and the first one after a change between training and evaluation. Up to torch 2.12 it runs
    without gradients, so it is no training forward anyway.

    No attribute of the stage says so. The functions that are running do.
    """
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_name == "_forward_metadata_inference" and frame.f_locals.get("self") is stage:
            return True
        frame = frame.f_back
    return False


def gradients_arriving(stage: Any) -> list[Tensor]:
    """Return the tensors into which a stage of a pipeline receives the gradients of its outputs."""
    return _received(stage, "grad_recv_info")


def kept_by_stage(stage: Any) -> list[Tensor]:
    """Return what a stage of a pipeline has made in a step and keeps until its next step begins.

    The last stage keeps its outputs. Any stage keeps the gradients of its inputs, if the schedule splits backward.
    """
    outputs = tree_leaves(getattr(stage, "output_chunks", []))
    gradients = (each.grad for each in _received(stage, "args_recv_info"))
    return [each for each in (*outputs, *gradients) if isinstance(each, Tensor)]


def _received(stage: Any, kind: str) -> list[Tensor]:
    every = (info for infos in getattr(stage, kind, {}).values() for info in infos)
    found = (getattr(info, "buffer", None) for info in every)
    return [each for each in found if isinstance(each, Tensor)]


def mesh_ranks(tensor: Any) -> set[int]:
    """Return the ranks over which a DTensor lies."""
    return set(tensor.device_mesh.mesh.flatten().tolist())


def like(tensor: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that makes this rank's part a DTensor laid out as `tensor`; or leaves it, if that is none."""
    if not is_distributed(tensor):
        return lambda part: part
    kind, spec = type(tensor), tensor._spec  # as `from_local` does in a forward, but without a graph
    return lambda part: kind(part, spec, requires_grad=False)


def wait_for_collectives(on: bool) -> bool:
    """Set whether this thread waits for functional collectives as they begin; return whether it did before.

    By default torch waits when somebody first reads the result of one. If nobody does, because a replay ends before,
    torch holds the result for good.
    """
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    if functional is None or not process_group():
        return False
    wrap = functional._maybe_wrap_tensor
    if not isinstance(wrap, _Waits):
        if not on:
            return False
        wrap = functional._maybe_wrap_tensor = _Waits(wrap, functional.wait_tensor)
    before, wrap.on = wrap.on, on
    if not on:
        functional._maybe_wrap_tensor = wrap.plain
    return before


class _Waits(threading.local):
    """Stands for torch's function that wraps the result of a collective. In threads with `on` it waits instead."""

    def __init__(self, plain: Callable[[Tensor], Tensor], wait: Callable[[Tensor], Tensor]) -> None:
        self.plain, self.wait, self.on = plain, wait, False

    def __call__(self, tensor: Tensor) -> Tensor:
        return self.wait(tensor) if self.on else self.plain(tensor)


def move(tensor: Tensor) -> None:
    """Free a tensor's whole storage and allocate it anew with the same bytes: whoever watches the allocator sees that.

    Nobody may read it meanwhile. It does not count as a change of the tensor.
    """
    storage = tensor.untyped_storage()
    size_bytes = storage.nbytes()
    # The bytes wait in numpy's memory, which torch's allocator does not see. The tensor's own storage must not become
    # numpy's: it could not be resized then.
    held = torch.from_numpy(numpy.empty(size_bytes, numpy.uint8))
    held.copy_(_row_of(tensor))
    storage.resize_(0)
    storage.resize_(size_bytes)
    _row_of(tensor).copy_(held)


def _row_of(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def own_rank() -> int:
    """Return the number of this process in the default group."""
    return torch.distributed.get_rank()


def ranks_in(group: Any) -> list[int]:
    """Return the numbers of the processes of a group."""
    return torch.distributed.get_process_group_ranks(group)


def lies_on_several(unit: Any) -> bool:
    """Whether parameters of a unit lie on several ranks even while they are gathered (tensor parallelism)."""
    return any(each.is_dtensor for group in param_groups(unit) for each in group.fsdp_params)


def meshes_of_layers(unit: Any) -> list[Any]:
    """Return the meshes on which parameters of a unit lie even while they are gathered."""
    every = [each for group in param_groups(unit) for each in group.fsdp_params if each.is_dtensor]
    specs = (getattr(each, "_unsharded_dtensor_spec", None) or each._tp_spec for each in every)  # the latter: 2.11
    return [each.mesh for each in specs]


def name_of_group(mesh: Any) -> str:
    """Return the name of the process group of a mesh of one dimension: the same on all ranks."""
    return str(mesh.get_group().group_name)


def group_of(name: str) -> Any:
    """Return the process group of a name; None if there is none."""
    distributed: Any = torch.distributed.distributed_c10d
    return next((group for group, each in distributed._world.pg_names.items() if each == name), None)


def gather_parts(whole: Tensor, part: Tensor, group: str) -> None:
    """Gather the parts of all ranks into `whole`, in the order of ranks; all ranks of the group call this."""
    run: Any = getattr(torch.distributed, "all_gather_single", None)  # torch 2.12 and before have the other name
    (run or torch.distributed.all_gather_into_tensor)(whole, part, group=group_of(group))


def has_rebuilt_buckets(wrapper: torch.nn.parallel.DistributedDataParallel) -> bool:
    """Whether the buckets of DistributedDataParallel were laid out anew. That happens once, in its second step."""
    return wrapper._has_rebuilt_buckets
