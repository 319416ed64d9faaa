"""Several processes that train one model: what they agree on, and which memory is this one's own.

base.py      `Ranks`: what the rest of the library asks of ranks; `One` is a process that trains by itself
group.py     ranks that agree, through the store of their process group
by_hand.py   the same plan by hand on all ranks, where replays run collectives
together.py  the same done on all ranks, or on none
errors.py    errors of one rank, as the others raise them
pipeline.py  stages of a pipeline, which cannot wait for each other as a step begins
buckets.py   buckets of DistributedDataParallel
layers.py    layers that ranks share (tensor parallelism): which of their inputs are the same on all ranks
fsdp.py      units of FSDP2: parameters at rest and gathered, and whose code gathers
refuse.py    what several ranks cannot do yet, refused by name

Plans whose replays run no collectives may differ from rank to rank, and ranks exchange nothing for them in training.
Replays run collectives under tensor parallelism, or if a segment covers several units of FSDP2. All ranks have the same
such plan, and agree on it in every step. Segments around units of
FSDP2 are refused.
"""

from __future__ import annotations

from torch import nn

from .._torch import private
from .base import Agree, Choose, One, Parted, Ranks
from .buckets import wrappers
from .fsdp import parameters_on_several, units
from .group import Group

__all__ = ["Agree", "Choose", "One", "Parted", "Ranks", "ranks_of"]


def ranks_of(model: nn.Module) -> Ranks:
    """Return the ranks that train a model together, as it is wrapped or sharded now: `One` where it is neither."""
    if not private.process_group():
        return One()
    members: set[int] = set()
    for wrapper in wrappers(model):
        members.update(private.ranks_in(wrapper.process_group))
    for _, parameter in parameters_on_several(model):
        members.update(private.mesh_ranks(parameter))
    for unit in units(model).values():
        members.update(private.unit_ranks(unit))
        for shard, _ in private.parameters_of(unit):
            members.update(private.mesh_ranks(shard))  # with tensor parallelism: ranks of all dimensions
    return Group(tuple(sorted(members))) if len(members) > 1 else One()
