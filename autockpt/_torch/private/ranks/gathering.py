"""Gathering the parameters of a unit of FSDP2: whether they are gathered, how many bytes it takes, and doing it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..frames import parts
from .sharded import param_groups, parameters_of


def gather(unit: Any) -> bool:
    """Gather the parameters of a unit; return whether some were sharded and no gather of them was under way."""
    asked = False
    for group in param_groups(unit):
        if not group.is_unsharded:
            asked = asked or group._all_gather_result is None
            group.unshard()
            group.wait_for_unshard()
    return asked


def let_go(unit: Any) -> None:
    """Free the parameters that `gather` gathered; their shards stay."""
    for group in param_groups(unit):
        group._to_sharded()


def is_here(unit: Any) -> bool:
    """Whether the parameters of a unit are gathered."""
    return all(group.is_unsharded for group in param_groups(unit))


def is_coming(unit: Any) -> bool:
    """Whether parameters of a unit are on their way: a collective brings them, and nobody has waited for it yet."""
    return not is_here(unit) and any(group._all_gather_result is not None for group in param_groups(unit))


def gather_bytes(unit: Any) -> tuple[int, int, int]:
    """Return three sizes: a unit's gathered parameters, the buffers of the gathers, and what other ranks send."""
    whole = parts(each for _, each in parameters_of(unit) if each is not None)
    bringing_bytes = received_bytes = 0
    for group in param_groups(unit):
        ranks = group.mesh_info.shard_mesh_size if hasattr(group.mesh_info, "shard_mesh_size") else 1
        for each in group.fsdp_params if ranks > 1 else ():
            item_bytes = (each.param_dtype or each.sharded_param.dtype).itemsize
            own_bytes = each._sharded_param_data.numel() * item_bytes
            bringing_bytes += ranks * own_bytes
            received_bytes += (ranks - 1) * own_bytes
    storages = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in whole}
    return sum(storages.values()), bringing_bytes, received_bytes


def given_to_unit(tensor: Tensor) -> tuple[Any, int] | None:
    """Return the node that made a tensor before a unit of FSDP2 was given it, and the number of the node's output.

    A unit's hooks replace each tensor that the unit is given by another one with the same bytes. None if `tensor` is
    not such a one.
    """
    node: Any = tensor.grad_fn
    if node is None or type(node).__name__ != "RegisterPostBackwardFunctionBackward":
        return None
    found: tuple[Any, int] = node.next_functions[tensor.output_nr]
    return found
