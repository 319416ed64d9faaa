"""Ranks that share layers (tensor parallelism): each of them may have the whole input of a layer.

    rank 0   x ─▶ its columns, its rows ─┐ sum ─▶ y       x and y are the same on both, bit for bit,
    rank 1   x ─▶ its columns, its rows ─┘ sum ─▶ y       where both draw the same random numbers

The code does not tell which tensors are the same on all ranks. So ranks compare checksums, in the recorded step and in
each later replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from torch import nn

from .._data.errors import NotApplicable
from .._data.offload import Offload
from .._data.profile import Profile
from .._data.step.copies import CopiedTensors
from .._torch import private
from .base import Agree
from .buckets import wrappers
from .fsdp import each_unit, parameters_on_several, runs_collectives, units

PARTS = "offload='shard' splits boundaries among the ranks that have the same ones, as in tensor parallelism. "

NO_GROUP = PARTS + "This process has no process group: it trains by itself. Leave offload= out."

NOT_SHARED = (
    PARTS
    + "No parameter of {0} lies on several ranks in forward (DTensor, parallelize_module){1}, so nothing says which "
    "ranks have the same boundaries. Leave offload= out, or name the ranks by Offload.of('shard', group=...)."
)

OWN_BATCH = ": under DistributedDataParallel and FSDP each rank has a batch of its own"

SEVERAL = PARTS + "Parameters of {0} lie on several meshes, or on a multi-dimensional mesh: {1}. Leave offload= out."

OTHER_RANKS = (
    "the plan keeps parts of boundaries on {0} ranks, and layers of {1} lie on {2}: its bytes are those of another "
    "layout. Make a plan here: apply(model, budget, offload='shard')."
)


UNKNOWN = PARTS + "This process is in no process group of the name {0!r}."


def refuse_no_parts(model: nn.Module, offload: Offload) -> None:
    """Refuse a model whose boundaries cannot be split among ranks, even if its layers are still to be shared.

    Raises:
        NotApplicable: it is such a model, or this process is in no process group, or not in `offload.group`.
    """
    if not private.process_group():
        raise NotApplicable(NO_GROUP)
    if offload.group and private.own_rank() not in _members(offload.group):
        raise NotApplicable(UNKNOWN.format(offload.group))
    # A bare model may still be parallelized over a group. One that is wrapped already has had its chance.
    if (wrappers(model) or units(model)) and not offload.group and not runs_collectives(model):
        raise NotApplicable(NOT_SHARED.format(type(model).__name__, OWN_BATCH))


def sharing_group(model: nn.Module, offload: Offload) -> str:
    """Return the name of the process group whose ranks share a model's layers.

    Args:
        model: the model.
        offload: may name the group, or give the number of ranks.

    Raises:
        NotApplicable: there is no such group, there is more than one, or the group has another number of ranks.
    """
    refuse_no_parts(model, offload)
    group, kind = offload.group or _of_meshes(model), type(model).__name__
    found = len(_members(group))
    if offload.ranks not in (0, found):
        raise NotApplicable(OTHER_RANKS.format(offload.ranks, kind, found))
    return group


def _of_meshes(model: nn.Module) -> str:
    """Return the name of the process group of the mesh on which parameters are distributed even in forward."""
    meshes = [parameter.device_mesh for _, parameter in parameters_on_several(model)]
    meshes += [mesh for unit in each_unit(model) for mesh in private.meshes_of_layers(unit)]
    kind = type(model).__name__
    if not meshes:
        raise NotApplicable(NOT_SHARED.format(kind, ""))
    groups = {private.name_of_group(mesh) if mesh.ndim == 1 else "" for mesh in meshes}
    if len(groups) > 1 or "" in groups:
        raise NotApplicable(SEVERAL.format(kind, ", ".join(dict.fromkeys(map(str, meshes)))))
    return groups.pop()


def _members(group: str) -> list[int]:
    """Return the ranks of a group; none where this process knows no group of that name."""
    found = private.group_of(group)
    return [] if found is None else private.ranks_in(found)


def with_copies(profile: Profile, agree: Agree, group: str) -> Profile:
    """Return a recorded step with the inputs that were the same on all ranks sharing layers; all ranks call this.

    Args:
        profile: the step on this rank, with its checksums.
        agree: all ranks that train together agree by it.
        group: name of the process group of those that share layers with this rank.
    """
    copies = CopiedTensors() if profile.copies is None else profile.copies
    members = _members(group)
    own = {call: [each for _, each in pairs] for call, pairs in copies.sums.items()}
    alike = agree({"sharing": members, "sums": own}, _alike)
    every = [*(each for call in profile.calls for each in call.arguments), *chain(*profile.functions.arguments)]
    written = {each.tensor for each in every if each.mutated}
    found = {tensor for call in alike for tensor, _ in copies.sums[call]} - written
    return msgspec.structs.replace(profile, copies=CopiedTensors(ranks=len(members), tensors=tuple(sorted(found))))


def _alike(every: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the calls whose inputs were the same on all ranks of each group."""
    found = set(every[0]["sums"])
    for sharing in {tuple(each["sharing"]) for each in every}:
        first, *others = (each["sums"] for each in every if tuple(each["sharing"]) == sharing)
        found &= {call for call, sums in first.items() if all(each.get(call) == sums for each in others)}
    return found
