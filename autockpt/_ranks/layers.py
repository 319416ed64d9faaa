"""Ranks that share layers (tensor parallelism): what goes into a layer, each of them may have whole.

    rank 0   x ─▶ its columns, its rows ─┐ sum ─▶ y       x and y are the same on both, bit for bit,
    rank 1   x ─▶ its columns, its rows ─┘ sum ─▶ y       where both draw the same random numbers

What they have alike is not known from the code: they compare checksums, of the recorded step and of each replay after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from torch import nn

from .. import _torch_private as private
from .._data.copies import CopiedTensors
from .._data.errors import NotApplicable
from .._data.profile import Profile
from .base import Ranks
from .buckets import wrappers
from .units import each_unit, speaking_parameters, speaks, units

PARTS = "offload='shard' keeps a part of each boundary on all ranks that have the same one, as in tensor parallelism. "

NO_GROUP = PARTS + "This process has no process group: it trains by itself. Leave offload= out."

NOT_SHARED = (
    PARTS
    + "No parameter of {0} lies on several ranks in forward (DTensor, parallelize_module){1}, so nothing says which "
    "ranks have the same boundaries. Leave offload= out."
)

OWN_BATCH = ": under DistributedDataParallel and FSDP each rank has a batch of its own"

SEVERAL = PARTS + "Parameters of {0} lie on several meshes, or on one of several dimensions: {1}. Leave offload= out."

OTHER_RANKS = (
    "the plan keeps parts of boundaries on {0} ranks, and layers of {1} lie on {2}: its bytes are those of another "
    "layout. Make a plan here: apply(model, budget, offload='shard')."
)


def refuse_no_parts(model: nn.Module) -> None:
    """Refuse a model of whose boundaries ranks cannot keep parts, whatever shares its layers later.

    Raises:
        NotApplicable: it is such a model, or there are no other ranks.
    """
    if not private.process_group():
        raise NotApplicable(NO_GROUP)
    if (wrappers(model) or units(model)) and not speaks(model):
        raise NotApplicable(NOT_SHARED.format(type(model).__name__, OWN_BATCH))


def sharing_group(model: nn.Module, ranks: int = 0) -> str:
    """Return the name of the process group whose ranks share a model's layers.

    Args:
        model: the model.
        ranks: how many they have to be; 0 for any number.

    Raises:
        NotApplicable: there is no such group, or more than one, or another number of ranks.
    """
    refuse_no_parts(model)
    meshes = [parameter.device_mesh for _, parameter in speaking_parameters(model)]
    meshes += [mesh for unit in each_unit(model) for mesh in private.meshes_of_layers(unit)]
    kind = type(model).__name__
    if not meshes:
        raise NotApplicable(NOT_SHARED.format(kind, ""))
    groups = {private.name_of_group(mesh) if mesh.ndim == 1 else "" for mesh in meshes}
    if len(groups) > 1 or "" in groups:
        raise NotApplicable(SEVERAL.format(kind, ", ".join(dict.fromkeys(map(str, meshes)))))
    (group,) = groups
    found = len(private.ranks_in(private.group_of(group)))
    if ranks not in (0, found):
        raise NotApplicable(OTHER_RANKS.format(ranks, kind, found))
    return group


def with_copies(profile: Profile, ranks: Ranks, group: str) -> Profile:
    """Return a recorded step with what all ranks that share layers were given alike in it; all ranks call this.

    Args:
        profile: the step on this rank, with its checksums.
        ranks: all that train together.
        group: those of them that share layers with this one.
    """
    copies = CopiedTensors() if profile.copies is None else profile.copies
    members = private.ranks_in(private.group_of(group))
    own = {call: [each for _, each in pairs] for call, pairs in copies.sums.items()}
    alike = ranks.agree({"sharing": members, "sums": own}, _alike)
    every = [*(each for call in profile.calls for each in call.arguments), *chain(*profile.functions.arguments)]
    written = {each.tensor for each in every if each.mutated}
    found = {tensor for call in alike for tensor, _ in copies.sums[call]} - written
    return msgspec.structs.replace(profile, copies=CopiedTensors(ranks=len(members), tensors=tuple(sorted(found))))


def _alike(every: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the calls that were given the same on all ranks of each group."""
    found = set(every[0]["sums"])
    for sharing in {tuple(each["sharing"]) for each in every}:
        first, *others = (each["sums"] for each in every if tuple(each["sharing"]) == sharing)
        found &= {call for call, sums in first.items() if all(each.get(call) == sums for each in others)}
    return found
