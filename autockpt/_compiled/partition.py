"""Partitions of joint graphs as a plan says: what backends on AOTAutograd are given."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from .. import __version__
from .._data.compiled_plan import CompiledPlan, JointGraph
from .._torch.private import compiling as private
from .cut import cut, signature
from .plan import make_plan
from .reading import Traced

_log = logging.getLogger("autockpt")


class Partition(private.Partitioner):
    """Cuts each joint graph as a plan says; one that the plan does not know as low as it can be.

    torch keeps what it compiled under the plan's key: other plans share none of it, and the same one finds it again in
    another process.

    Args:
        plan: the plan.

    Attributes:
        plan: the same.
        met: signatures of the graphs of the plan that were cut. What torch has kept is not cut again.
        unknown: how many others were cut.
    """

    def __init__(self, plan: CompiledPlan) -> None:
        self.plan = plan
        self.met: list[str] = []
        self.unknown = 0

    def __reduce__(self) -> tuple[Callable[[str], Partition], tuple[str]]:
        return restored, (cuts_of(self.plan),)

    def uuid(self) -> str:
        """Return what graphs are kept under that are cut so."""
        return hashlib.sha256(f"autockpt {__version__} {cuts_of(self.plan)}".encode()).hexdigest()

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> private.Graphs:
        """Cut a joint graph."""
        private.as_partitioned(gm)
        name = signature(gm)
        again = self.plan.again.get(name)
        if again is None:
            if not self.unknown:
                _log.warning("a graph is compiled that no plan knew ahead: it is cut as low as it can be by itself")
            self.unknown += 1
            alone = make_plan([Traced(joint=gm, n_outputs=kwargs["num_fwd_outputs"])], {}, None)
            again = alone.again[name]
        else:
            self.met.append(name)
        return cut(gm, again, joint_inputs, **kwargs)


def cuts_of(plan: CompiledPlan) -> str:
    """Return what a plan says of graphs, as text: alike for plans that cut alike, in every process."""
    return json.dumps(plan.again, sort_keys=True)


def restored(cuts: str) -> Partition:
    """Return the partition of a plan of which only the cuts are known."""
    found = [JointGraph(signature=name, again=tuple(again)) for name, again in json.loads(cuts).items()]
    return Partition(CompiledPlan(graphs=tuple(found)))


def compiled(
    target: Any,
    partition: Partition,
    *,
    dynamic: bool = False,
    fullgraph: bool = False,
    inductor: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what a user compiled, cut by a partition; what other partitions made of the same code stays apart.

    Args:
        target: what to compile.
        partition: cuts its joint graphs.
        dynamic: whether sizes are symbolic.
        fullgraph: whether a graph break is an error.
        inductor: settings of inductor; None for ``aot_eager``.
    """
    how: dict[str, Any] = {"backend": eager_backend(partition), "dynamic": dynamic, "fullgraph": fullgraph}
    if inductor is not None:
        how |= {"backend": "inductor", "options": {**inductor, "custom_partitioner_fn": partition}}
    return private.compiled_apart(target, **how)


def eager_backend(partition: Partition) -> Callable[..., Any]:
    """Return ``aot_eager``, cut by a partition."""
    return private.aot_backend(partition)
