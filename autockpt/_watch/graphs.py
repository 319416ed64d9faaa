"""The graphs that the forwards of a step make: which of them wait for a backward, and which backwards have begun.

A hook on the outputs of a forward lives as long as their graph, and tells when a backward comes to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from .. import _torch_private as private
from .._calls.values import tensors


class Graphs:
    """Those of one step.

    Args:
        tell: is called inside each backward, once for each graph that it comes to.

    Attributes:
        nodes: counts the nodes of autograd that the forwards make.
        backwards: the numbers of the backwards that have begun.
        keeping: those of the ones that keep their graph, and make none of their own.
        differentiable: whether one can: some output leads to a parameter.
        waiting: how many of the forwards had no backward yet, of those that should have one.
    """

    __slots__ = ("_alive", "_tell", "backwards", "differentiable", "keeping", "nodes", "waiting")

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell, self.nodes = tell, private.NodeCount()
        self.backwards: set[int] = set()
        self.keeping: set[int] = set()
        self.differentiable, self.waiting = False, 0
        self._alive: list[weakref.ref[_Begins]] = []  # one for each forward, while its graph is

    def watch(self, outputs: object, *, trains: bool = True) -> None:
        """Learn when the backward of a forward begins, and whether it never can; one in eval mode need have none."""
        begins = _Begins(self._begins, counts=trains)
        nodes = [tensor.grad_fn for tensor in tensors(outputs) if tensor.grad_fn is not None]
        for node in nodes:
            node.register_prehook(begins)
        if nodes:
            self.differentiable = True
            self.waiting += trains
        self._alive.append(weakref.ref(begins))

    def waits(self, *, derived: bool) -> bool:
        """Whether one is alive that had no backward yet, or one that keeps it for another.

        Or one whose backward made a graph of its own (``create_graph``), where those that were `derived` count.
        """
        alive = [begins for each in self._alive if (begins := each()) is not None]
        return any(each.waits or each.kept or (each.derived and derived) for each in alive)

    def _begins(self, counts: bool, kept: bool) -> None:
        self.backwards.add(private.running_backward())
        if kept:
            self.keeping.add(private.running_backward())
        self.waiting -= counts
        self._tell()


class _Begins:
    """A hook on the outputs of a forward, which lives as long as their graph.

    Attributes:
        waits: whether no backward has begun.
        kept: whether the last that did keeps the graph, and makes none of its own.
        derived: whether the last that did makes a graph of its own, of which there may be derivatives.
    """

    __slots__ = ("__weakref__", "_counts", "_tell", "derived", "kept", "waits")

    def __init__(self, tell: Callable[[bool, bool], None], *, counts: bool) -> None:
        self._tell, self._counts = tell, counts
        self.waits, self.kept, self.derived = True, False, False

    def __call__(self, gradients: Any) -> None:
        first, self.waits, self.derived = self.waits, False, torch.is_grad_enabled()
        self.kept = private.keeps_graph() and not self.derived
        self._tell(first and self._counts, self.kept)
