"""The step that is under way: which forwards it has made, and whether its backward has come."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from ... import _torch_private as private
from ..._calls.values import tensors
from ..._stash.spilled_step import SpilledStep
from ..batch import Batch, Kind
from ..frames.thread import carrying
from .decision import Decision
from .measured import Measured


@dataclass(slots=True, kw_only=True)
class Step:
    """A training step, from its first forward to that of the next.

    Attributes:
        decision: how it runs.
        gradient_bytes: of the gradients with which it began.
        way: what watches it, where it does not run under a plan.
        batches: of its forwards.
        nodes: counts the nodes of autograd that its forwards make.
        backwards: the numbers of the backwards that have begun.
        differentiable: whether one can: some output leads to a parameter.
        waiting: how many of its forwards had no backward yet.
        outputs: what tells of each forward's graph whether it is alive.
        running: whether one of its forwards is.
        thread: that runs it.
        measured: what measures it, where it runs under a plan that was rehearsed.
        optimizers: that have taken a step since its first forward, by id.
        after_backward: is called as each of its backwards is over, if given.
    """

    decision: Decision
    gradient_bytes: int
    way: SpilledStep | None = None
    batches: list[Batch] = field(default_factory=list)
    nodes: private.NodeCount = field(default_factory=private.NodeCount)
    backwards: set[int] = field(default_factory=set)
    differentiable: bool = False
    waiting: int = 0
    outputs: list[weakref.ref[_Begins]] = field(default_factory=list)
    running: bool = False
    thread: threading.Thread = field(default_factory=threading.current_thread)
    carried: tuple[dict[str, int], set[int]] = field(default_factory=lambda: ({}, set()))
    measured: Measured | None = None
    optimizers: set[int] = field(default_factory=set)
    after_backward: Callable[[], None] | None = None

    @property
    def kind(self) -> Kind:
        """What kind of step it has been so far."""
        return Kind(batches=tuple(self.batches), gradient_bytes=self.gradient_bytes)

    @property
    def backward(self) -> bool:
        """Whether a backward has begun."""
        return bool(self.backwards)

    def goes_on(self) -> bool:
        """Whether a forward that begins now belongs to it: a backward is still to come for earlier ones."""
        return self.is_here() and not self.backward and any(output() is not None for output in self.outputs)

    def is_here(self) -> bool:
        """Whether it runs in this thread."""
        return self.thread is threading.current_thread()

    def may_be_the_last_here(self) -> bool:
        """Whether the next one may run in another thread, where this one's recording cannot be ended."""
        return self.is_here() and self.thread is not threading.main_thread()

    def is_alive(self) -> bool:
        """Whether the thread that runs it is there."""
        return self.thread.is_alive()

    def ends_twice(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has taken a step; whether it had since the first forward, so that another was none."""
        before = id(optimizer) in self.optimizers
        self.optimizers.add(id(optimizer))
        return before

    def over(self) -> None:
        """Note that it may be over: an optimizer has stepped, or the model does something else than train."""
        if self.backward and self.measured is not None:
            self.measured.ends()

    def counting_on(self) -> AbstractContextManager[None]:
        """Return a context in which calls of a further forward are numbered after those of the earlier ones."""
        return carrying(self.carried)

    def watch(self, outputs: object) -> None:
        """Learn when the backward of a forward begins, and whether it never can."""
        begins = _Begins(self._begins)
        nodes = [tensor.grad_fn for tensor in tensors(outputs) if tensor.grad_fn is not None]
        for node in nodes:
            node.register_prehook(begins)
        if nodes:
            self.differentiable = True
            self.waiting += 1
        self.outputs.append(weakref.ref(begins))

    def _begins(self, first: bool) -> None:
        self.backwards.add(private.running_backward())
        self.waiting -= first
        if self.way is not None:
            self.way.backward_begins()
        if self.after_backward is not None:
            private.after_backward(self.after_backward)


class _Begins:
    """A hook on the outputs of a forward, which lives as long as their graph."""

    __slots__ = ("__weakref__", "_first", "_tell")

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._tell, self._first = tell, True

    def __call__(self, gradients: Any) -> None:
        first, self._first = self._first, False
        self._tell(first)
