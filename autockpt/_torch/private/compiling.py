"""What compilers of torch show of a step before it runs: its joint graphs, and what of them is whose.

torch.compile ─▶ Dynamo: graphs without breaks ─▶ AOTAutograd: one joint graph each ─▶ a partition ─▶ two graphs, run
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.eval_frame import innermost_backend
from torch._functorch import config
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

NO_FAKES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What is raised where an operator needs values, and a fake tensor has none."""

Graphs = tuple[fx.GraphModule, fx.GraphModule]
"""The graphs of forward and backward."""

Partition = Callable[..., Graphs]
"""Makes two graphs of a joint one, as `partitioned` does."""

Partitioner = CustomPartitionerFn
"""What cuts joint graphs for inductor, called as `partitioned` is; its `uuid` is what torch keeps graphs under."""


def partitioned(joint: fx.GraphModule, inputs: Any, **more: Any) -> Graphs:
    """Cut a joint graph by torch's own partitioner, which `functorch.compile` hands out; the graph is changed."""
    graphs: Graphs = min_cut_rematerialization_partition(joint, inputs, **more)
    return graphs


def parted(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **_: Any) -> Graphs:
    """Cut a joint graph where forward ends, which takes less than to look for the best cut; the graph is changed."""
    graphs: Graphs = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
    return graphs


def aot_backend(partition: Partition) -> Callable[..., Any]:
    """Return a backend as ``aot_eager`` is, whose joint graphs are cut by `partition`, and come from no cache."""
    cutting: Callable[..., Any] = aot_autograd(
        fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition, keep_inference_input_mutations=True
    )

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        with uncached():  # torch keeps such graphs by what they compute, whoever cuts them
            run: Callable[..., Any] = cutting(graph, inputs)
        return run

    return backend


def uncached() -> Any:
    """Return a context in which joint graphs are traced, and none is taken from a cache of what was cut before."""
    return config.patch(enable_autograd_cache=False)


def is_compiling() -> bool:
    """Whether a compiler of torch is at work: then what is compiled may run for its shapes alone."""
    return torch._guards.TracingContext.try_get() is not None


def own_share() -> float:
    """Return the share of saved bytes that torch's own partitioner was told to keep to; 1 where it was told nothing."""
    return float(config.activation_memory_budget)


def compiled_apart(target: Any, **how: Any) -> Callable[..., Any]:
    """Return what ``torch.compile`` makes of `target`, with its variants apart from others' where torch can do that.

    Else a compiler that met eight of them, of whatever call, gives up, and the code runs as it was written.
    """
    known = inspect.signature(torch.compile).parameters
    how |= {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    run: Callable[..., Any] = torch.compile(target, **how)
    return run


def as_partitioned(joint: fx.GraphModule) -> None:
    """Bring a joint graph into the form in which torch's own partitioner cuts it: nothing unread, nothing twice."""
    joint.graph.eliminate_dead_code()
    if config.cse:
        joint.graph = fx_graph_cse(joint.graph)


def hint(number: Any) -> int:
    """Return a size that may be symbolic, as it was when its graph was traced."""
    return number if isinstance(number, int) else int(number.node.hint)


def is_tangent(node: fx.Node) -> bool:
    """Whether a node is the gradient of an output, which backward is given."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_traced_in_backward(node: fx.Node) -> bool:
    """Whether an operator was called while backward was traced."""
    return node.meta.get("partitioner_tag") == "is_backward"


def argument_of(node: fx.Node) -> int | None:
    """Return which argument of the compiled function a placeholder is; None for one that is none."""
    return _index(node.meta.get("desc"), "PlainAOTInput")


def output_of_tangent(node: fx.Node) -> int | None:
    """Return of which output of the compiled function a tangent is the gradient; None where that is not known."""
    return _index(getattr(node.meta.get("desc"), "output", None), "PlainAOTOutput")


def outputs_of(joint: fx.GraphModule) -> list[tuple[fx.Node | None, int | None, int | None]]:
    """Return the outputs of a joint graph, forward's first.

    Each comes with the number that it has among the outputs of the compiled function, and with the number of the
    argument whose gradient it is; None where it is no such thing.
    """
    node = joint.graph.output_node()
    values = torch.utils._pytree.tree_leaves(node.args[0])
    known = node.meta.get("desc") or [None] * len(values)
    return [
        (
            value if isinstance(value, fx.Node) else None,
            _index(each, "PlainAOTOutput"),
            _index(getattr(each, "grad_of", None), "PlainAOTInput"),
        )
        for value, each in zip(values, known, strict=True)
    ]


def overwritten(joint: fx.GraphModule) -> list[fx.Node]:
    """Return the arguments of a joint graph that forward overwrites: inside the graph, or right after it."""
    described = joint.graph.output_node().meta.get("desc") or ()
    after = [each.mutated_input for each in described if type(each).__name__ == "InputMutationAOTOutput"]
    copies = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    inside = [each.args[0] for each in copies]
    arguments = joint.graph.find_nodes(op="placeholder")
    return [each for each in arguments if each in inside or each.meta.get("desc") in after]


def _index(described: Any, kind: str) -> int | None:
    index: int | None = described.idx if type(described).__name__ == kind else None
    return index


def module_of_node(node: fx.Node) -> str:
    """Return the qualified name of the module whose code called an operator, or whose backward it belongs to."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next(reversed([*stack.values()]), ("", None))[0]
    parts = [part for part in path.replace("['", ".").replace("']", "").split(".") if part not in ("L", "self")]
    return ".".join(part for part in parts if part != "_modules")


class CompileSettings:
    """How a user compiled a module.

    Args:
        module: one that was compiled as a whole, by ``torch.compile(module)`` or ``module.compile()``.

    Attributes:
        backend: name of the backend.
        options: settings of inductor that they gave.
        inductor: the same where it is the backend; else None.
        fullgraph: whether a graph break is an error.
        dynamic: whether sizes are symbolic; not where that is left to the compiler.
        target: what they compiled: the module inside, or the module's own call.
        attribute: where the compiled call stands in the ``__dict__`` of `module`.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        in_place = module._compiled_call_impl is not None
        self.attribute = "_compiled_call_impl" if in_place else "forward"
        self.target: Any = module._call_impl if in_place else module._orig_mod
        call: Any = module._compiled_call_impl if in_place else module
        while isinstance(call, functools.partial):
            call = call.args[0]
        context: Any = _context_of(call)
        backend: Any = innermost_backend(context.callback)
        self.backend: str = getattr(backend, "compiler_name", "")
        self.options: dict[str, Any] = dict(getattr(backend, "config", {}))
        self.inductor = self.options if self.backend == "inductor" else None
        self.fullgraph, self.dynamic = bool(context.fullgraph), bool(context._dynamic)


def _context_of(call: Any) -> Any:
    """Return Dynamo's context of a compiled module or function."""
    if hasattr(call, "dynamo_ctx"):
        return call.dynamo_ctx
    cells = [cell.cell_contents for cell in call.get_compiler_config.__closure__]
    return next(cell for cell in cells if hasattr(cell, "callback"))
