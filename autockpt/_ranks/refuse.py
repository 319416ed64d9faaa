"""Refuses by name what several ranks cannot do yet: on every rank alike, before one rank waits for another.

A rank that records or plans by itself would run other collectives than the others, and all would wait for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from .._data.errors import NotApplicable
from .._data.plan import Plan
from .._torch import private
from .buckets import wrappers
from .fsdp import called, gathers, parameters_on_several, runs_collectives, units

COLLECTIVES = ("c10d.", "_c10d_functional.")
"""Prefixes of the names of operators that are collectives."""

SHARDED = (
    "{0} is sharded over ranks ({1}), and a step of such a model can be neither recorded nor predicted yet. Write a "
    "plan by hand with one sharded unit a segment, apply(model, plan=Plan.of([...])), shard by fully_shard (FSDP2), or "
    "wrap in DistributedDataParallel."
)

ON_THE_HOST = (
    "{0} is a unit of FSDP2 whose shards lie on the host (CPUOffloadPolicy): its parameters do not say on which device "
    "its steps run, and no such step has been recorded on a GPU yet. Leave offload_policy= out: shards are the smaller "
    'part, and apply(model, budget, offload="host") moves activations there instead. Or write a plan by hand, '
    "apply(model, plan=Plan.of([...]))."
)

ONLY_IN_TRAINING = (
    "{0} is sharded over ranks ({1}), and a step of autockpt's own would run forward more often on one rank than on "
    "another. Leave inputs= and plan_for= out: apply(model, budget) records the training itself."
)

TOGETHER = (
    "{0} runs collectives in forward. Each of {1} ranks would decide by itself what to recompute, so they would wait "
    "for each other for ever, or take each other's results. Write a plan by hand that does not recompute {0}, and give "
    "it to every rank: apply(model, plan=Plan.of([...]))."
)

AROUND = (
    "around {0} is DistributedDataParallel, and inside are layers that are shared by tensor parallelism: hooks put "
    "other parameters into their places in every forward, and no step of such a model can be recorded. Call "
    "fully_shard over the mesh's other dimension instead of it."
)

OWN_STEP = (
    "{0} is DistributedDataParallel, whose forward broadcasts buffers between {1} ranks, and a step of autockpt's own "
    "runs forward more often on one rank than on another. Record without inputs=, in the training itself, or give "
    "model.module."
)

UNITS = (
    "the segment {0} covers {1} unit{2} that are sharded (FSDP), whose parameters are not gathered when its replay "
    "runs. Make the units themselves the calls of a segment, not a module around them. With FSDP1, make each unit a "
    "segment of its own."
)

PARTS = (
    "the replay of the segment {0} goes in parts, or others lie inside it. Replays of this model run collectives, and "
    "every level would run them again. Leave out its cuts and its inner segments."
)

COVERS_UNITS = "has units of FSDP inside, whose parameters its replay would have to gather"

IS_A_UNIT = "is a unit of FSDP, whose parameters are not gathered when a replay of several calls runs"


ON_SEVERAL_RANKS = "is given tensors that lie on several ranks (DTensor)"

REDUCES = "has DistributedDataParallel, whose forward begins a reduction of gradients anew"


def ranks() -> int:
    """Return how many processes train together: 1 where there is no process group."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def refuse_sharded(model: nn.Module) -> None:
    """Refuse a model that is sharded in a way that cannot be recorded yet, and layers whose forward needs all ranks.

    Raises:
        NotApplicable: it is such a model.
    """
    found = units(model)
    for name, unit in found.items():
        if private.gathers_by_itself(unit):
            raise NotApplicable(SHARDED.format(name or type(model).__name__, "FSDP2 with an all-gather of its own"))
        if private.is_offloaded(unit):
            raise NotApplicable(ON_THE_HOST.format(name or type(model).__name__))
    for wrapper in wrappers(model):
        if any(map(private.is_distributed_at_times, wrapper.parameters())):
            raise NotApplicable(AROUND.format(type(wrapper.module).__name__))
    for name in _of_fsdp(model, "FullyShardedDataParallel"):
        raise NotApplicable(SHARDED.format(name or type(model).__name__, "FSDP1"))
    if found and (name := next(parameters_on_several(model), ("", None))[0]):
        raise NotApplicable(SHARDED.format(name, "DTensor parameters beside FSDP2"))
    together = [name for name, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm)]
    if together and ranks() > 1:
        raise NotApplicable(TOGETHER.format(together[0], ranks()))


def refuse_outside_training(model: nn.Module) -> None:
    """Refuse a sharded model whose step would be recorded, or predicted, outside of its training.

    Raises:
        NotApplicable: see `refuse_sharded`; or it has units of FSDP2, or parameters that are DTensors.
    """
    refuse_sharded(model)
    if found := units(model):
        raise NotApplicable(ONLY_IN_TRAINING.format(next(iter(found)) or type(model).__name__, "FSDP2"))
    if runs_collectives(model):
        raise NotApplicable(ONLY_IN_TRAINING.format(type(model).__name__, "DTensor"))


def refuse_own_step(model: nn.Module) -> None:
    """Refuse a step of autockpt's own if its forwards would wait for those of other ranks.

    Raises:
        NotApplicable: see `refuse_outside_training`; or a forward inside the model broadcasts buffers.
    """
    refuse_outside_training(model)
    for name, module in model.named_modules():
        broadcasts = isinstance(module, nn.parallel.DistributedDataParallel) and module.broadcast_buffers
        if broadcasts and ranks() > 1 and next(module.buffers(), None) is not None:
            raise NotApplicable(OWN_STEP.format(name or "the model", ranks()))


def refuse_collectives(operators: Iterable[tuple[str, str]]) -> None:
    """Refuse a recorded step in which a module's own code ran collectives.

    Args:
        operators: name of each operator that a replay might run, and class of the module whose call ran it.

    Raises:
        NotApplicable: a module's code ran collectives, and there are other ranks.
    """
    ours = [kind for name, kind in operators if name.startswith(COLLECTIVES) and kind != "DistributedDataParallel"]
    if ours and ranks() > 1:
        raise NotApplicable(TOGETHER.format(ours[0], ranks()))


def refuse_units(model: nn.Module, segments: Iterable[tuple[str, ...]]) -> None:
    """Refuse segments around units of FSDP, and segments over several units of FSDP1.

    Hooks of units inside a call would gather during the replay.

    Args:
        model: the model.
        segments: the keys of the calls of each.

    Raises:
        NotApplicable: there is such a segment.
    """
    older = {*_of_fsdp(model, "FullyShardedDataParallel")}
    every = {*units(model), *older}
    for calls in segments if every else ():
        names = called(calls)
        inside = {unit for unit in every for name in names if unit.startswith(f"{name}.")}
        covered = inside | (every & names)
        if inside or (older & names and len(calls) > 1):
            raise NotApplicable(UNITS.format(", ".join(calls[:6]), len(covered), "s" * (len(covered) > 1)))


def refuse_parts(model: nn.Module, plan: Plan) -> None:
    """Refuse replays in parts, and inner segments, if replays run collectives.

    Raises:
        NotApplicable: a segment's replay goes in parts or has inner segments.
    """
    cut = [segment.calls for segment in plan.segments if segment.goes_in_parts]
    if cut and (runs_collectives(model) or gathers(model, cut)):
        raise NotApplicable(PARTS.format(", ".join(cut[0][:6])))


def _of_fsdp(model: nn.Module, kind: str) -> Iterator[str]:
    """Names of the modules of a class of FSDP's."""
    # Another thread may be in the midst of importing it: then no module is of such a class yet.
    found = getattr(sys.modules.get("torch.distributed.fsdp"), kind, None)
    return (name for name, module in model.named_modules() if found is not None and isinstance(module, found))
