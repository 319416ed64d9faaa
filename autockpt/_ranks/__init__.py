"""Several processes that train one model: what they agree on, and which memory is this one's own.

base.py      `Ranks`: what the rest of the library asks; `One` is a process by itself, which runs none of it
group.py     ranks that agree, through the store of their process group
by_hand.py   the same plan by hand on all ranks, where replays run collectives
circles.py   ranks that wait for each other in groups that overlap
errors.py    errors of one rank, as the others raise them
pipeline.py  stages of a pipeline, which cannot wait for each other as a step begins
buckets.py   buckets of DistributedDataParallel
layers.py    layers that ranks share (tensor parallelism): what they are given alike
fsdp.py      units of FSDP2: parameters at rest and gathered, and whose code gathers
refuse.py    what does not go with several ranks yet, refused by name

A segment is silent where its replay runs no collective, and speaks where it runs some. Silent plans may differ from
rank to rank, and nothing is asked of the others while they train. Of plans that speak, as those of tensor parallelism
do, all ranks have one and the same, and agree in every step. Segments over units of FSDP2 would speak, and are refused.
"""

from __future__ import annotations

from torch import nn

from .. import _torch_private as private
from .base import One, Parted, Ranks
from .buckets import wrappers
from .fsdp import speaking_parameters, units
from .group import Group

__all__ = ["One", "Parted", "Ranks", "ranks_of"]


def ranks_of(model: nn.Module) -> Ranks:
    """Return the ranks that train a model together, as it is wrapped or sharded now: `One` where it is neither."""
    if not private.process_group():
        return One()
    members: set[int] = set()
    for wrapper in wrappers(model):
        members.update(private.ranks_in(wrapper.process_group))
    for _, parameter in speaking_parameters(model):
        members.update(private.mesh_ranks(parameter))
    for unit in units(model).values():
        members.update(private.unit_ranks(unit))
        for shard, _ in private.parameters_of(unit):
            members.update(private.mesh_ranks(shard))  # over tensor parallelism those of all dimensions
    return Group(tuple(sorted(members))) if len(members) > 1 else One()
