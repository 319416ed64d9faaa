"""Partitions of joint graphs as a plan says: what backends on AOTAutograd are given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import fx

from .._torch.private import compiling as private
from .cut import cut, signature
from .plan import CompiledPlan, make_plan
from .reading import Traced

_log = logging.getLogger("autockpt")


class Partition:
    """Cuts each joint graph as a plan says; one that the plan does not know as low as it can be.

    Args:
        plan: the plan.

    Attributes:
        plan: the same.
        met: signatures of the graphs of the plan that were cut.
        unknown: how many others were cut.
    """

    def __init__(self, plan: CompiledPlan) -> None:
        self.plan = plan
        self.met: list[str] = []
        self.unknown = 0

    def __call__(self, joint: fx.GraphModule, inputs: Any, **more: Any) -> private.Graphs:
        """Cut a joint graph."""
        private.as_partitioned(joint)
        name = signature(joint)
        again = self.plan.again.get(name)
        if again is None:
            if not self.unknown:
                _log.warning("a graph is compiled that no plan knew ahead: it is cut as low as it can be by itself")
            self.unknown += 1
            alone = make_plan([Traced(joint=joint, n_outputs=more["num_fwd_outputs"])], {}, None)
            again = alone.again[name]
        else:
            self.met.append(name)
        return cut(joint, again, inputs, **more)


def eager_backend(partition: Partition) -> Callable[..., Any]:
    """Return ``aot_eager``, cut by a partition."""
    return private.aot_backend(partition)
