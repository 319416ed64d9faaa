"""Handing a choice to torch's own partitioner, and what comes out of it.

Every operator of forward is told whether it runs again. What is saved follows: what backward, or an operator that runs
again, reads of operators that do not.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from .._data.compiled_plan import CompiledPlan, JointGraph
from .._data.errors import NotApplicable
from .._torch.private import compiling as private
from .reading import Traced, forward_of, storages_of


def signature(joint: fx.GraphModule) -> str:
    """Return a text that two joint graphs share where they have the same operators on the same shapes, in order."""
    parts = hashlib.sha256()
    for node in joint.graph.nodes:
        values = [each for each in tree_leaves(node.meta.get("val")) if isinstance(each, torch.Tensor)]
        looks = [(tuple(map(str, each.shape)), str(each.dtype), str(each.device)) for each in values]
        target = str(node.target) if node.op == "call_function" else ""
        parts.update(repr((node.op, target, looks)).encode())
    return parts.hexdigest()


def look_of(traced: Traced) -> JointGraph:
    """Return a graph as plans tell it: its signature, and where it begins and ends."""
    nodes = forward_of(traced)
    modules = [*filter(None, map(private.module_of_node, nodes))] or ["the model"]
    name = modules[0] if modules[0] == modules[-1] else f"{modules[0]} … {modules[-1]}"
    return JointGraph(signature=signature(traced.joint), name=name, operators=len(nodes))


def refuse_other_graphs(plan: CompiledPlan, graphs: Sequence[Traced]) -> None:
    """Refuse a plan that was not made for these graphs.

    Raises:
        NotApplicable: it does not know some of them, or knows others; the message names these.
    """
    found = {look.signature: look for look in map(look_of, graphs)}
    known = {each.signature: each for each in plan.graphs}
    unknown = [_told(each) for name, each in found.items() if name not in known]
    missing = [_told(each) for name, each in known.items() if name not in found]
    if unknown or missing:
        raise NotApplicable(
            f"the plan is for other graphs than those of this step, of which it knows {len(found) - len(unknown)} of "
            f"{len(found)}.\nOnly in this step: {'; '.join(unknown) or 'none'}.\nOnly in the plan: "
            f"{'; '.join(missing) or 'none'}.\nA plan holds for the model, the sizes of the batch, train or eval mode, "
            "autocast, backend and torch that it was made with. Make one for this step: apply(model, budget)."
        )


def _told(graph: JointGraph) -> str:
    return f"{graph.name} ({graph.operators} operators)"


def cut(joint: fx.GraphModule, again: Collection[int], inputs: Any = None, **more: Any) -> private.Graphs:
    """Cut a joint graph in two, so that some of its operators run again in backward.

    Args:
        joint: in the form in which torch's partitioner cuts it; it is changed.
        again: the operators, by their places among its nodes.
        inputs: as the partitioner is given them.
        more: likewise.
    """
    traced = Traced(joint=joint, n_outputs=more["num_fwd_outputs"])
    nodes, wanted = traced.nodes, set(again)
    made = {key for place in wanted for key in storages_of(nodes[place])}
    runs_again = {nodes[place] for place in wanted}
    for node in forward_of(traced):
        own = set(storages_of(node))
        view = bool(own) and own <= made and any(made & set(storages_of(each)) for each in node.all_input_nodes)
        chosen = node in runs_again or view
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE if chosen else CheckpointPolicy.MUST_SAVE
        node.meta.pop("ac_graph_id", None)
    return private.partitioned(joint, inputs, **more)


def outcome(traced: Traced, again: Collection[int] | None) -> frozenset[int]:
    """Return which operators of a joint graph run again if it is cut so, by their places; the graph stays as it is.

    None stands for torch's own choice.
    """
    joint = fx.GraphModule(traced.joint, copy.deepcopy(traced.joint.graph))
    cutting = private.partitioned if again is None else functools.partial(cut, again=again)
    forward, backward = cutting(joint, inputs=None, num_fwd_outputs=traced.n_outputs)
    first = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    second = {node.name for node in backward.graph.nodes if node.op == "call_function"}
    own = {node.name: place for place, node in enumerate(traced.nodes)}
    late = {node.name for node in traced.nodes} - {node.name for node in forward_of(traced)}
    return frozenset(own[name] for name in second - late if name in own and name in first)
