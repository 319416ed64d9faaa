"""The step that is under way: which forwards it has made, and which of them had a backward.

    one forward          F ── B ── optimizer │ F ── B ── ...
    a graph that waits   G ── D ── B(D) ── D(G) ── B(D, G) │ G ── ...      a generator's, while its critic learns
    a pipeline's       F ── F ── B ── F ── B ── B ── optimizer │ F ── ...                   whatever waits
    derived again        I ── grad(I, create_graph) ── O ── ... ── B(O, I) │ I ── ...      inner losses, outer ones
    one that is held     M ── F ── B ── optimizer ── F ── B ── optimizer │ F ── ...      M never has a backward

A step goes on while the graph of one of its forwards waits for its first backward, also after a backward of others. A
graph that somebody merely holds, as a metric does, would have it go on for ever; see `Patience`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from .._batches.batch import Batch, Kind
from .._watch.graphs import Graphs
from .decision import Decision
from .way import Way

MOST_FORWARDS = 16
"""Forwards since a step's first backward, or an optimizer's last step, after which a graph that waits is one that is
held. More than any critic is asked in between, and no more than can be recorded together."""


class Patience:
    """How long the graph of an earlier forward is waited for, once a backward has come.

    Until an optimizer steps a second time or changes all that there is, or for `MOST_FORWARDS`.

    Attributes:
        over: whether a graph that still waits is one that is held.
        stepped: whether an optimizer has taken a step.
    """

    __slots__ = ("_final", "_late", "_since_forward")

    def __init__(self) -> None:
        self._since_forward: dict[int, bool] = {}  # optimizers that have stepped, by id; whether since a forward
        self._late = 0  # forwards since the first backward, or since an optimizer stepped after that
        self._final = False  # whether an optimizer has taken a second step, or one that no graph outlives

    @property
    def over(self) -> bool:
        return self._final or self._late >= MOST_FORWARDS

    @property
    def stepped(self) -> bool:
        return bool(self._since_forward)

    def forward_begins(self, *, late: bool) -> None:
        """Note that another forward begins, after a backward where it is `late`."""
        self._late += late
        self._since_forward = dict.fromkeys(self._since_forward, False)

    def optimizer_stepped(self, optimizer: Optimizer, outdates: Callable[[Optimizer], bool]) -> bool:
        """Note that an optimizer has taken a step; return whether it had since the last forward: another was none.

        Args:
            optimizer: the optimizer.
            outdates: whether no backward can come any more after its step to a graph that waits.
        """
        before = self._since_forward.get(id(optimizer))
        self._since_forward[id(optimizer)] = True
        self._final, self._late = self._final or before is not None or outdates(optimizer), 0
        return bool(before)


class StepUnderWay:
    """A training step, from its first forward to that of the next.

    Args:
        decision: how it runs.
        way: what runs it.
        model: that trains; not kept alive.
        gradient_bytes: of the gradients with which it begins.
        made_before: sizes of what the loop made before it, where the one before it was recorded.

    Attributes:
        batches: of its forwards.
        graphs: that they make.
        running: whether one of its forwards is.
        trains: whether one of them is known to be one of training, and not of an evaluation.
        whole: whether it goes on until an optimizer steps, as that of a stage of a pipeline does.
    """

    __slots__ = (
        *("_model", "_patience", "_pauses", "_thread", "batches", "decision", "gradient_bytes", "graphs"),
        *("made_before", "running", "trains", "way", "whole"),
    )

    def __init__(
        self, decision: Decision, way: Way, model: nn.Module, gradient_bytes: int, made_before: tuple[int, ...] = ()
    ) -> None:
        self.decision, self.way, self.gradient_bytes, self.made_before = decision, way, gradient_bytes, made_before
        self.batches: list[Batch] = []
        self.graphs, self.running, self.trains = Graphs(way.backward_begins), False, False
        self._model, self._thread, self._patience = weakref.ref(model), threading.current_thread(), Patience()
        self.whole = False
        self._pauses = 0  # forwards since its backward that were no training: a frozen teacher's, before the next step

    @property
    def model(self) -> nn.Module | None:
        """The model, where somebody still has it."""
        return self._model()

    @property
    def kind(self) -> Kind:
        """What kind of step it has been so far."""
        return Kind(batches=tuple(self.batches), gradient_bytes=self.gradient_bytes)

    @property
    def backward(self) -> bool:
        """Whether a backward has begun."""
        return bool(self.graphs.backwards)

    def goes_on(self) -> bool:
        """Whether a forward that begins now belongs to it: a graph of an earlier one waits for its first backward."""
        if self.whole:
            return self.is_here() and not self._patience.stepped
        return self.is_here() and not (self.backward and self._patience.over) and self.waits()

    def waits(self) -> bool:
        """Whether the graph of one of its forwards is alive and had no backward yet, or one that keeps it for another.

        Where that made a graph of its own (``create_graph``), as far as no optimizer has stepped since.
        """
        return self.graphs.waits(derived=not self._patience.stepped)

    @property
    def is_evaluation(self) -> bool:
        """Whether it has been none of training so far."""
        return not self.trains and not self.backward

    def forward_begins(self, batch: Batch, *, trains: bool) -> None:
        """Note that another of its forwards begins, and whether it is known to be one of training."""
        self.trains = self.trains or trains
        self.batches.append(replace(batch, backwards=len(self.graphs.backwards)))
        self._patience.forward_begins(late=self.backward)

    def is_here(self) -> bool:
        """Whether it runs in this thread."""
        return self._thread is threading.current_thread()

    def may_be_the_last_here(self) -> bool:
        """Whether the next one may run in another thread, where this one's tape cannot be ended."""
        return self.is_here() and self._thread is not threading.main_thread()

    def is_alive(self) -> bool:
        """Whether the thread that runs it is there."""
        return self._thread.is_alive()

    def optimizer_stepped(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has taken a step; whether it had since the last forward, so that another was none."""
        return self._patience.optimizer_stepped(optimizer, self._outdates)

    def _outdates(self, optimizer: Optimizer) -> bool:
        """Whether its step has changed every parameter, so that no backward can come any more to a graph that waits."""
        model = self._model() if self.waits() else None
        if model is None:
            return False
        stepped = {id(each) for group in vars(optimizer).get("param_groups", ()) for each in group["params"]}
        trained = [each for each in model.parameters() if each.requires_grad]
        return all(id(each) in stepped and each.is_leaf and each.grad is not None for each in trained)

    def ends_here(self) -> bool:
        """Whether it is over as soon as this thread does something else: its backward has come, and no graph waits."""
        return self.is_here() and self.backward and not self.goes_on()

    def pauses_shortly(self) -> bool:
        """Note a forward that is no training; return whether a tape that is open should see what is made of it.

        A teacher's outputs count in the step that comes. A whole evaluation is not followed, and no graph of a model in
        eval mode: it may be gone before the step that comes has its peak.
        """
        self._pauses += self.ends_here()
        return self._pauses <= MOST_FORWARDS and not torch.is_grad_enabled() and self.is_alive()
