"""Records a model as one rank of several has it, without the other ranks.

fsdp2    shards as in training, and collectives that return tensors of the right sizes
dtensor  parts of layers (tensor parallelism), and collectives that return activations of the right sizes
ddp      the model inside the wrapper; the buckets are counted: reductions run in C++, which takes no fake tensors
whole    a model that is not shared: each rank holds all of it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..._data.errors import NotApplicable, ProfilingError
from ..._data.profile import Profile
from ..._data.step.world import World
from ..._ranks.buckets import bucket_bytes
from ..._ranks.fsdp import runs_collectives, units
from ..._ranks.refuse import refuse_sharded
from ..._torch import private
from ..optimizers.memory import Optimizers, choose_optimizers
from ..recorder import profiles_of_fakes
from ..step import Loss
from .shard import shard

Way = Literal["fsdp2"]
"""How to share a model whose build does not share it."""

INSIDE = (
    "{0} is DistributedDataParallel inside the model, which cannot be planned without the other ranks yet. Wrap the "
    "whole model, or leave the wrapping out: each rank holds all of it in both cases."
)

REPLICATED = (
    "the model is DistributedDataParallel, whose ranks each hold all of it, and was to be shared by {0} as well. Leave "
    "the wrapping out, or leave out shard={0!r} (--shard)."
)

LEFT = (
    "the function that builds the model has left the process group that stands for the other ranks "
    "(destroy_process_group), and a step of one of them is to be recorded in it. Leave that out of the function"
)

NO_COLLECTIVES = (
    "collectives take no time here: FSDP2 hides theirs as far as the links between devices allow, and those of tensor "
    "parallelism are waited for; what replays over several units gather is taken to come at 50 GB/s"
)


@dataclass(frozen=True, slots=True)
class OnRank:
    """A model as rank 0 has it, its batch, loss and optimizer; see `autockpt.profile`."""

    model: nn.Module
    inputs: object
    loss: Loss | None = None
    optimizer: Optimizers | None = None
    holds_outputs: bool = True


def profiles_of_rank(made: OnRank, devices: Sequence[str | None], way: Way | None = None) -> list[Profile]:
    """Record a step of a model on one of the ranks of a fake process group, with the seconds of each device.

    The model cannot be used afterwards: tensors without values take the place of its own.

    Args:
        made: what was built in that group.
        devices: names of rooflines; None for the default one.
        way: how to share the model, if its build has not; None to leave it whole.

    Raises:
        NotApplicable: the model is shared in a way that cannot be planned without the other ranks.
        ProfilingError: the build has left the group; else see `autockpt.profile`.
    """
    if not private.process_group():
        raise ProfilingError(LEFT)
    model = made.model
    refuse_sharded(model)
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            if name:
                raise NotApplicable(INSIDE.format(name))
            if way is not None:
                raise NotApplicable(REPLICATED.format(way))
            return _of_replica(made, module, devices)
    if way is not None and not units(model) and not runs_collectives(model):
        given = made.optimizer if isinstance(made.optimizer, (list, tuple)) else [made.optimizer]
        shard(model, [each for each in given if isinstance(each, Optimizer)])
    found = _recorded(made, devices)
    if units(model) or runs_collectives(model):
        found = [msgspec.structs.replace(each, notes=(*each.notes, NO_COLLECTIVES)) for each in found]
    if units(model):
        return found
    shared: Literal["dtensor", "whole"] = "dtensor" if runs_collectives(model) else "whole"
    return [_with(each, World(ranks=private.group_size(), way=shared)) for each in found]


def _recorded(made: OnRank, devices: Sequence[str | None]) -> list[Profile]:
    return profiles_of_fakes(
        made.model,
        made.inputs,
        devices,
        loss=made.loss,
        optimizers=choose_optimizers(made.optimizer, made.model),
        holds_outputs=made.holds_outputs,
    )


def _of_replica(made: OnRank, wrapper: DistributedDataParallel, devices: Sequence[str | None]) -> list[Profile]:
    """Record the model inside DistributedDataParallel, and count the buckets.

    If gradients are views of the buckets, they exist before the step, and backward adds to them.
    """
    inner, size_bytes = wrapper.module, bucket_bytes(wrapper)
    lie_there = wrapper.gradient_as_bucket_view
    for each in inner.parameters() if lie_there else ():
        each.grad = torch.zeros_like(each) if each.requires_grad else None
    world = World(ranks=private.group_size(), way="ddp", bucket_bytes=size_bytes)
    return [
        _with(each, world, other_bytes=each.static.other_bytes + (0 if lie_there else size_bytes))
        for each in _recorded(replace(made, model=inner), devices)
    ]


def _with(profile: Profile, world: World, **static: int) -> Profile:
    return msgspec.structs.replace(profile, world=world, static=msgspec.structs.replace(profile.static, **static))
