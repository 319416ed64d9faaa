"""Memory that a step overwrites while its forward runs: who reads it in backward finds other values there.

forward    f0 reads x   f1   x.mul_(0.5)            backward    f0 again would read what x holds by now
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from .._torch import private as torch_private
from .._torch.private import compiling as private

STATISTICS = ("running_mean", "running_var")
"""Arguments of batch norms that are only averaged into: while these train, no other result depends on them."""


def overwritten_keys(joint: fx.GraphModule, others: Collection[int] = ()) -> frozenset[int]:
    """Return the storages of a joint graph that are overwritten before backward runs.

    Args:
        joint: the graph.
        others: places of nodes whose memory other graphs of the step overwrite.
    """
    nodes = [*joint.graph.nodes]
    found = (*private.overwritten(joint), *(nodes[place] for place in others))
    return frozenset(filter(None, (torch_private.storage_key(each.meta["val"]) for each in found)))


def reads_overwritten(node: fx.Node, keys: Collection[int]) -> bool:
    """Whether what an operator returns depends on memory that is overwritten before backward runs.

    Args:
        node: the operator.
        keys: the storages that are overwritten.
    """
    if not keys:
        return False
    apart = _averaged_into(node)
    values = (each.meta.get("val") for each in node.all_input_nodes if each not in apart)
    return any(isinstance(each, torch.Tensor) and torch_private.storage_key(each) in keys for each in values)


def _averaged_into(node: fx.Node) -> set[fx.Node]:
    """Return the arguments of a batch norm that it averages into, if nothing of the step reads the new averages."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return set()
    given = _given(node)
    new = [i for i, each in enumerate(target._schema.returns) if each.name in [f"{name}_out" for name in STATISTICS]]
    if not new or given.get("training") is False:
        return set()
    items = [each for each in node.users if each.args[1] in new]
    if any(_depends_on(user, each) for each in items for user in each.users):
        return set()
    return {each for name in STATISTICS if isinstance(each := given.get(name), fx.Node)}


def _depends_on(user: fx.Node, averages: fx.Node) -> bool:
    """Whether something that runs again, or runs in backward, depends on new averages that it is given."""
    if user.op == "output" or user.target is torch.ops.aten.copy_.default:  # forward's own copy of them into the buffer
        return False
    readers = [name for name, value in _given(user).items() if value is averages]
    # In training the backward of a batch norm takes them, and reads those of the batch.
    return _given(user).get("train") is not True or not set(readers) <= set(STATISTICS)


def _given(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator by name; nothing of what is no operator of torch's."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return {}
    return dict(zip((each.name for each in target._schema.arguments), node.args, strict=False)) | node.kwargs
