"""A dry pass: the compiler traces a copy of the model over fake tensors, and no kernel runs.

model ─▶ copy, with fakes for parameters and buffers ─▶ torch.compile ─▶ joint graphs, and what crosses between them
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_map

from .._calls.values import tensors
from .._data.errors import NotApplicable
from .._record.aside.sandbox import Sandbox
from .._torch import private as torch_private
from .._torch.private import compiling as private
from ..solvers.units import listed
from .cut import signature
from .reading import Links, Traced


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool = False,
    inductor: Mapping[str, Any] | None = None,
) -> tuple[list[Traced], Links]:
    """Trace the joint graphs of a training step of `model`, in the order in which forward reaches them.

    Nothing of the model changes, nor do generators, nor what its code reaches. Modes and autocast of the caller are in
    force.

    Args:
        model: the model.
        args: by position; tensors in containers are replaced by fake ones.
        kwargs: by keyword.
        dynamic: as `torch.compile` takes it.
        inductor: settings of inductor, whose joint graphs are asked for; None for those of ``aot_eager``.

    Returns:
        The graphs, one for each call of one, and what a call hands to a later one.

    Raises:
        NotApplicable: parts of forward that are trained run outside of what is compiled; or forward reads the values
            of tensors, or calls an operator that knows no fake ones.
    """
    seen = _SeenGraph(inductor)
    with over_fakes(model, args, kwargs or {}) as (twin, given, named):
        outputs = private.compiled_apart(twin, backend=seen.backend, dynamic=dynamic)(*given, **named)
        _refuse_outside(outputs, (given, named))
        return seen.graphs(outputs), seen.links()


@contextmanager
def over_fakes(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[nn.Module, Any, Any]]:
    """Yield a copy of a model and its batch as fake tensors; inside, what is compiled comes from no cache.

    Raises:
        NotApplicable: forward reads the values of tensors, or calls an operator that knows no fake ones.
    """
    mode = torch_private.new_fake_mode()

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.grad_fn is not None:  # no backward goes on from a fake into what made the batch
            value = value.detach().requires_grad_()
        return mode.from_tensor(value, static_shapes=True)

    with Sandbox(model, inputs=[*args, *kwargs.values()], buffers=False), private.uncached():
        own = {id(each): fake(each) for each in (*model.parameters(), *model.buffers())}
        twin = copy.deepcopy(model, own)
        given, named = tree_map(fake, (tuple(args), dict(kwargs)))
        try:
            with mode:
                yield twin, given, named
        except private.NO_FAKES as error:
            raise NotApplicable(
                f"forward cannot be traced without values, and so no plan be made before it runs: {error}. Leave "
                "branches on values of tensors (.item()) out of forward, or compile blocks one by one."
            ) from error


def _refuse_outside(outputs: Any, given: Any) -> None:
    """Refuse a forward of which operators run outside of its graphs: what these hold is not predicted.

    What made the batch is the caller's own, such as a generator before its critic.
    """
    todo = [each.grad_fn for each in tensors((outputs,)) if each.grad_fn is not None]
    seen, outside = {each.grad_fn for each in tensors((given,))}, dict[str, None]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        todo += [each for each, _ in node.next_functions if each is not None]
        if not node.name().startswith(INSIDE):
            outside[node.name()] = None
    if outside:
        raise NotApplicable(
            f"of the forward that is compiled parts run outside of its graphs, where these break: {listed(outside)}. "
            "What they hold is not predicted. TORCH_LOGS=graph_breaks says where graphs break. Mend that, or compile "
            "blocks one by one, block.compile(), and apply to the model."
        )


INSIDE = (
    *("CompiledFunction", "torch::autograd::AccumulateGrad", "Alias", "View", "UnsafeView", "Transpose", "T", "Select"),
    *("Slice", "Squeeze", "Unsqueeze", "Permute", "Expand"),
)
"""How the nodes of autograd begin that hold nothing outside of graphs: compiled code, parameters and views."""


class _SeenGraph(private.Partitioner):
    """Notes each joint graph, and what each call of a compiled function is given and returns."""

    def __init__(self, inductor: Mapping[str, Any] | None = None) -> None:
        self._graphs: list[Traced] = []
        self._calls: list[tuple[int, tuple[Any, ...], tuple[Any, ...]]] = []
        self._compiler = private.aot_backend(self) if inductor is None else _inductor_graphs(self, inductor)

    def uuid(self) -> None:
        """Say that nothing which is made here may be taken from a cache."""

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> private.Graphs:
        private.as_partitioned(gm)
        self._graphs.append(Traced(joint=gm, n_outputs=kwargs["num_fwd_outputs"]))
        # What follows may change the graph that it is given.
        return private.parted(fx.GraphModule(gm, copy.deepcopy(gm.graph)), joint_inputs, **kwargs)

    def backend(self, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """Compile a graph of Dynamo's, and note what it is given and returns as it runs."""
        number = len(self._graphs)
        run: Callable[..., Any] = self._compiler(graph, inputs)
        if len(self._graphs) == number:  # nothing in it requires gradients
            return run

        def noted(*args: Any) -> Any:
            results = run(*args)
            if not private.is_compiling():  # where DistributedDataParallel cuts a graph, parts run once for shapes
                self._calls.append((number, args, tuple(results)))
            return results

        return noted

    def graphs(self, outputs: Any) -> list[Traced]:
        """Return the graph of each call, in order; `outputs` are those of the model."""
        kept = {torch_private.storage_key(each) for each in tensors((outputs,))}
        overwritten = self._overwritten()
        return [
            replace(
                self._graphs[number],
                handed=frozenset(i for i, each in enumerate(results) if _key(each) in kept),
                overwritten=frozenset(overwritten[signature(self._graphs[number].joint)]),
            )
            for number, _, results in self._calls
        ]

    def _overwritten(self) -> Mapping[str, set[int]]:
        """Return the places of nodes whose memory some graph overwrites. Graphs that look alike are cut alike."""
        writers = ((args, private.overwritten(self._graphs[number].joint)) for number, args, _ in self._calls)
        numbers = ((args, private.argument_of(node)) for args, nodes in writers for node in nodes)
        keys = {_key(args[number]) for args, number in numbers if number is not None} - {0}
        found = defaultdict[str, set[int]](set)
        for number, args, results in self._calls if keys else ():
            traced = self._graphs[number]
            returned = {node: results[i] for node, i, _ in private.outputs_of(traced.joint) if node and i is not None}
            given = ((node, private.argument_of(node)) for node in traced.nodes if node.op == "placeholder")
            values = {**returned, **{node: args[i] for node, i in given if i is not None}}
            found[signature(traced.joint)].update(
                place for place, node in enumerate(traced.nodes) if _key(values.get(node)) in keys
            )
        return found

    def links(self) -> Links:
        """Return which argument of a call is which output of an earlier one."""
        made: dict[int, tuple[int, int]] = {}
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for number, (_, args, results) in enumerate(self._calls):
            for i, value in enumerate(args):
                if (key := _key(value)) in made:
                    found[number, i] = made[key]
            for i, value in enumerate(results):
                if key := _key(value):
                    made.setdefault(key, (number, i))
        return found


def _inductor_graphs(partition: private.Partitioner, config: Mapping[str, Any]) -> Callable[..., Any]:
    from .._torch.private.inductor import graphs_backend  # who compiles otherwise loads none of it

    return graphs_backend(partition, config)


def _key(value: Any) -> int:
    """Return what two tensors that share storage have in common; 0 for anything else."""
    return torch_private.storage_key(value) if isinstance(value, torch.Tensor) else 0
