"""The autograd graphs that a step's forwards make: which wait for a backward, and which backwards have begun.

A prehook on the outputs' nodes lives as long as their graph. It runs when a backward reaches that graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..._calls.values import tensors
from ..._torch import private


class Graphs:
    """The graphs of one step.

    Args:
        tell: called inside each backward, once for each graph that the backward reaches.

    Attributes:
        nodes: counts the autograd nodes that the forwards make.
        backwards: the numbers of the backwards that have begun.
        keeping: the numbers of those that keep their graph (``retain_graph``) without ``create_graph``.
        differentiable: whether some output has a ``grad_fn``, so that a backward can come.
        waiting: how many forwards still have no backward; those in eval mode do not count.
    """

    __slots__ = ("_alive", "_tell", "backwards", "differentiable", "keeping", "nodes", "waiting")

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell, self.nodes = tell, private.NodeCount()
        self.backwards: set[int] = set()
        self.keeping: set[int] = set()
        self.differentiable, self.waiting = False, 0
        self._alive: list[weakref.ref[_Begins]] = []  # one for each forward; dead once its graph is

    def watch(self, outputs: object, *, trains: bool = True) -> None:
        """Hook a forward's outputs, so that its backward is seen. If not `trains` (eval mode), none has to come."""
        begins = _Begins(self._begins, counts=trains)
        nodes = [tensor.grad_fn for tensor in tensors(outputs) if tensor.grad_fn is not None]
        for node in nodes:
            node.register_prehook(begins)
        if nodes:
            self.differentiable = True
            self.waiting += trains
        self._alive.append(weakref.ref(begins))

    def waits(self, *, derived: bool) -> bool:
        """Whether a graph is alive that had no backward yet, or whose last backward kept it.

        If `derived`, a graph also counts whose last backward used ``create_graph``.
        """
        alive = [begins for each in self._alive if (begins := each()) is not None]
        return any(each.waits or each.kept or (each.derived and derived) for each in alive)

    def only_last_waits(self) -> bool:
        """Whether the last forward's graph waits for its first backward, and that of no forward before it."""
        waits = [begins is not None and begins.waits for each in self._alive for begins in [each()]]
        return bool(waits) and waits[-1] and not any(waits[:-1])

    def _begins(self, counts: bool, kept: bool) -> None:
        self.backwards.add(private.running_backward())
        if kept:
            self.keeping.add(private.running_backward())
        self.waiting -= counts
        self._tell()


class _Begins:
    """A hook on the outputs of a forward, which lives as long as their graph.

    Attributes:
        waits: whether no backward has reached it.
        kept: whether the last backward keeps the graph (``retain_graph``), without ``create_graph``.
        derived: whether the last backward makes a graph of its own (``create_graph``), for derivatives of derivatives.
    """

    __slots__ = ("__weakref__", "_counts", "_tell", "derived", "kept", "waits")

    def __init__(self, tell: Callable[[bool, bool], None], *, counts: bool) -> None:
        self._tell, self._counts = tell, counts
        self.waits, self.kept, self.derived = True, False, False

    def __call__(self, gradients: Any) -> None:
        first, self.waits, self.derived = self.waits, False, torch.is_grad_enabled()
        self.kept = private.keeps_graph() and not self.derived
        self._tell(first and self._counts, self.kept)
