"""The step that is under way: which forwards it has made, and which of them had a backward.

    one forward          F ── B ── optimizer │ F ── B ── ...
    a graph that waits   G ── D ── B(D) ── D(G) ── B(D, G) │ G ── ...      a generator's, while its critic learns
    derived again        I ── grad(I, create_graph) ── O ── ... ── B(O, I) │ I ── ...      inner losses, outer ones
    one that is held     M ── F ── B ── optimizer ── F ── B ── optimizer │ F ── ...      M never has a backward

A step goes on while the graph of one of its forwards waits for its first backward, also after a backward of others. A
graph that somebody merely holds, as a metric does, would have it go on for ever; see `Step.goes_on`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .. import _torch_private as private
from .._calls.values import tensors
from .._frames.thread import carrying
from .._record.in_place import RecordedStep
from .._stash.spilled_step import SpilledStep
from .batch import Batch, Kind
from .decision import Decision
from .measured import Measured

MOST_FORWARDS = 16
"""Forwards since a step's first backward, or an optimizer's last step, after which a graph that waits is one that is
held. More than any critic is asked in between, and no more than can be recorded together."""


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
        optimizers: that have taken a step since its first forward, by id; whether since its last one.
        pauses: forwards since its backward that were no training: a frozen teacher's, before the next step.
        late: forwards since its first backward, or since an optimizer stepped after that.
        repeats: whether an optimizer has taken a second step, or one that no graph outlives: then another step comes.
        model: that trains.
        before: sizes of what the loop made before it, where the one before it was recorded.
        cut: whether something else than the next step ends what watches it.
        made: sizes of what the loop made after it and before the next one, where it was recorded.
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
    optimizers: dict[int, bool] = field(default_factory=dict)
    late: int = 0
    pauses: int = 0
    repeats: bool = False
    model: weakref.ref[nn.Module] | None = None
    before: tuple[int, ...] = ()
    cut: bool = False
    made: tuple[int, ...] = ()
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
        """Whether a forward that begins now belongs to it: a graph of an earlier one waits for its first backward.

        Where a backward of others has begun, only until an optimizer steps a second time or changes all that there is,
        or for `MOST_FORWARDS`.
        """
        held = self.repeats or self.late >= MOST_FORWARDS
        return self.is_here() and not (self.backward and held) and self.waits()

    def waits(self) -> bool:
        """Whether the graph of one of its forwards is alive and had no backward yet, or one that keeps it for another.

        Where that made a graph of its own (``create_graph``), as far as no optimizer has stepped since.
        """
        alive = [begins for output in self.outputs if (begins := output()) is not None]
        return any(each.waits or each.kept or (each.derived and not self.optimizers) for each in alive)

    def begins_forward(self, batch: Batch) -> None:
        """Note that another of its forwards begins."""
        self.batches.append(replace(batch, backwards=len(self.backwards)))
        self.late += self.backward
        self.optimizers = dict.fromkeys(self.optimizers, False)

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
        """Note that an optimizer has taken a step; whether it had since the last forward, so that another was none."""
        before = self.optimizers.get(id(optimizer))
        self.optimizers[id(optimizer)] = True
        self.repeats, self.late = self.repeats or before is not None or self._outdates(optimizer), 0
        return bool(before)

    def _outdates(self, optimizer: Optimizer) -> bool:
        """Whether its step has changed every parameter, so that no backward can come any more to a graph that waits."""
        model = self.model() if self.model is not None and self.waits() else None
        if model is None:
            return False
        stepped = {id(each) for group in vars(optimizer).get("param_groups", ()) for each in group["params"]}
        trained = [each for each in model.parameters() if each.requires_grad]
        return all(id(each) in stepped and each.is_leaf and each.grad is not None for each in trained)

    def ends_here(self) -> bool:
        """Whether it is over as soon as this thread does something else: its backward has come, and no graph waits."""
        return self.is_here() and self.backward and not self.goes_on()

    def pauses_long(self) -> bool:
        """Note a forward that is no training; return whether what watches the step need not see what is made of it.

        A teacher's outputs count in the step that comes. A whole evaluation is not followed, and no graph of a model in
        eval mode: it may be gone before the step that comes has its peak.
        """
        self.over()
        self.pauses += self.ends_here()
        short = self.pauses <= MOST_FORWARDS and not torch.is_grad_enabled() and self.is_alive()
        return not (short and isinstance(self.way, RecordedStep))

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
    """A hook on the outputs of a forward, which lives as long as their graph.

    Attributes:
        waits: whether no backward has begun.
        kept: whether the last that did keeps the graph, and makes none of its own.
        derived: whether the last that did makes a graph of its own, of which there may be derivatives.
    """

    __slots__ = ("__weakref__", "_tell", "derived", "kept", "waits")

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._tell, self.waits, self.kept, self.derived = tell, True, False, False

    def __call__(self, gradients: Any) -> None:
        first, self.waits, self.derived = self.waits, False, torch.is_grad_enabled()
        self.kept = private.keeps_graph() and not self.derived
        self._tell(first)
