"""The step under way, and what runs it: which forwards it has made, which of their graphs still wait for a backward.

    one forward          F ── B ── optimizer │ F ── B ── ...
    a waiting graph      G ── D ── B(D) ── D(G) ── B(D, G) │ G ── ...      a generator's, while its critic learns
    a pipeline           F ── F ── B ── F ── B ── B ── optimizer │ F ── ...      until the optimizer steps
    create_graph         I ── grad(I, create_graph) ── O ── ... ── B(O, I) │ I ── ...      inner losses, outer losses
    a graph only held    M ── F ── B ── optimizer ── F ── B ── optimizer │ F ── ...      M never has a backward

A step goes on while the graph of one of its forwards waits for its first backward, even if other graphs had theirs. If
somebody only holds a graph, as a metric does, the step would go on for ever: `Patience` limits that.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from .._record.watch.graphs import Graphs
from .batches.batch import Batch, Forward, Kind
from .deciding.machine import Decision
from .deciding.state import Ran

MOST_FORWARDS = 16
"""After this many forwards since a step's first backward, or since an optimizer's last step, a graph that still waits
is taken to be only held. Critics need fewer forwards between two steps of a generator, and so many can still be
recorded together."""


class Patience:
    """How long a step goes on for a graph that still waits, once another graph had its backward.

    Patience ends when an optimizer steps a second time or has changed all parameters, or after `MOST_FORWARDS`.

    Attributes:
        over: whether a graph that still waits is taken to be only held.
        stepped: whether an optimizer has taken a step.
    """

    __slots__ = ("_final", "_late", "_stepped_since_forward")

    def __init__(self) -> None:
        self._stepped_since_forward: dict[int, bool] = {}  # by id of each optimizer that has stepped at all
        self._late = 0  # forwards since the first backward, or since a later optimizer step
        self._final = False  # whether an optimizer stepped twice, or made a backward impossible for all waiting graphs

    @property
    def over(self) -> bool:
        return self._final or self._late >= MOST_FORWARDS

    @property
    def stepped(self) -> bool:
        return bool(self._stepped_since_forward)

    def forward_begins(self, *, late: bool) -> None:
        """Note that another forward begins; it is `late` if the step had a backward already."""
        self._late += late
        self._stepped_since_forward = dict.fromkeys(self._stepped_since_forward, False)

    def optimizer_stepped(self, optimizer: Optimizer, outdates: Callable[[Optimizer], bool]) -> bool:
        """Note that an optimizer has taken a step; return whether it had already stepped since the last forward.

        Args:
            optimizer: the optimizer.
            outdates: says whether the optimizer's step makes a backward impossible for all waiting graphs.
        """
        before = self._stepped_since_forward.get(id(optimizer))
        self._stepped_since_forward[id(optimizer)] = True
        self._final, self._late = self._final or before is not None or outdates(optimizer), 0
        return bool(before)


class StepRunner(Protocol):
    """Runs one step, and sees how it runs.

    Attributes:
        watches: whether the step is watched. Watching ends as something else begins, and covers only this thread.
        tapes: whether a tape watches it. A tape has to end in its own thread, and also sees what the loop allocates
            between steps.
        unhooked: whether a forward switched off, for a while, the saved-tensor hooks that the runner needs.
        reached: whether a backward was seen to read what a forward saved; False where none is watched.
    """

    __slots__ = ()

    watches: bool
    tapes: bool

    @property
    def unhooked(self) -> bool: ...

    @property
    def reached(self) -> bool: ...

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether a step with these forwards so far keeps to the budget; it began with so many bytes of gradients."""

    def forward(self, begins: Forward) -> Any:
        """Run one of the step's forwards."""

    def call(self, begins: Forward) -> Any:
        """Run a call of the model, or of another one of several, that comes from inside one of the forwards."""

    def backward_begins(self) -> None:
        """Note that a backward begins, or has begun; called inside it."""

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has taken a step, and the state that it now has."""

    def pauses(self) -> None:
        """Note that the model runs a forward that does not train, so that the step may be over."""

    def end(self, arguments: object, *, cut: bool) -> Ran:
        """End the step, because something else begins.

        Args:
            arguments: the arguments of what begins. They are not part of the step.
            cut: whether something else than the next step's forward begins. Then part of what the loop allocates before
                that forward is not seen.

        Raises:
            ProfilingError: nothing can be learnt from the step.
        """

    def drop(self) -> None:
        """Release what the runner holds. Graphs that are alive keep what they need."""


class StepUnderWay:
    """A training step, from its first forward to the first forward of the next one.

    Args:
        decision: how it runs.
        runner: what runs it.
        model: the model that trains; not kept alive.
        gradient_bytes: bytes of the gradients that exist as it begins.
        made_before: sizes of what the loop allocated before it; empty unless the previous step was recorded.

    Attributes:
        batches: the batches of its forwards.
        graphs: the autograd graphs that its forwards make.
        running: whether one of its forwards is running.
        trains: whether one of its forwards is known to be a training forward, not one of an evaluation.
        lasts_until_optimizer: whether it goes on until an optimizer steps, as on a stage of a pipeline.
    """

    __slots__ = (
        *("_ahead", "_model", "_patience", "_pauses", "_thread", "batches", "decision", "gradient_bytes", "graphs"),
        *("made_before", "runner", "running", "trains", "lasts_until_optimizer"),
    )

    def __init__(
        self,
        decision: Decision,
        runner: StepRunner,
        model: nn.Module,
        gradient_bytes: int,
        made_before: tuple[int, ...] = (),
        *,
        lasts_until_optimizer: bool = False,
    ) -> None:
        self.decision, self.runner = decision, runner
        self.gradient_bytes, self.made_before = gradient_bytes, made_before
        self.batches: list[Batch] = []
        self.graphs, self.running, self.trains = Graphs(runner.backward_begins), False, False
        self._model, self._thread, self._patience = weakref.ref(model), threading.current_thread(), Patience()
        self.lasts_until_optimizer = lasts_until_optimizer
        self._ahead = 0  # forwards before the backward of the one just before: see `runs_ahead`
        self._pauses = 0  # forwards after its backward that do not train, such as a frozen teacher's

    @property
    def model(self) -> nn.Module | None:
        """The model; None if it was deleted."""
        return self._model()

    @property
    def kind(self) -> Kind:
        """The kind of step that it has been so far."""
        return Kind(batches=tuple(self.batches), gradient_bytes=self.gradient_bytes)

    @property
    def backward(self) -> bool:
        """Whether a backward has begun, even at a tensor that no forward returned."""
        return bool(self.graphs.backwards) or self.runner.reached

    def goes_on(self) -> bool:
        """Whether a forward that begins now belongs to this step: the graph of an earlier one still waits."""
        if self.lasts_until_optimizer:
            return self.is_here() and not self._patience.stepped
        return self.is_here() and not (self.backward and self._patience.over) and self.waits()

    def waits(self) -> bool:
        """Whether a graph is alive that had no backward yet, or whose last backward used ``retain_graph``.

        A graph whose last backward used ``create_graph`` waits as well, until an optimizer steps.
        """
        return self.graphs.waits(derived=not self._patience.stepped)

    @property
    def is_evaluation(self) -> bool:
        """Whether nothing has shown so far that it trains."""
        return not self.trains and not self.backward

    def leads_nowhere(self) -> bool:
        """Whether it is only an evaluation so far, or had no backward and has no graph left for one."""
        return self.is_evaluation or not (self.backward or self.waits())

    def forward_begins(self, batch: Batch, *, trains: bool) -> None:
        """Note that another of its forwards begins, and whether it is known to be a training forward."""
        self.trains = self.trains or trains
        self._ahead += self.backward and self.graphs.only_last_waits()
        self.batches.append(replace(batch, backwards=len(self.graphs.backwards)))
        self._patience.forward_begins(late=self.backward)

    def is_here(self) -> bool:
        """Whether this thread runs it."""
        return self._thread is threading.current_thread()

    def may_be_the_last_here(self) -> bool:
        """Whether the next step may run in another thread. The tape of this one could not be ended there."""
        return self.is_here() and self._thread is not threading.main_thread()

    def is_alive(self) -> bool:
        """Whether the thread that runs it is alive."""
        return self._thread.is_alive()

    def optimizer_stepped(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has taken a step; return whether it had already stepped since the last forward."""
        return self._patience.optimizer_stepped(optimizer, self._outdates)

    def _outdates(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer's step has changed every parameter. Then no waiting graph can have a backward."""
        model = self._model() if self.waits() else None
        if model is None:
            return False
        stepped = {id(each) for group in vars(optimizer).get("param_groups", ()) for each in group["params"]}
        trained = [each for each in model.parameters() if each.requires_grad]
        return all(id(each) in stepped and each.is_leaf and each.grad is not None for each in trained)

    def runs_ahead(self) -> bool:
        """Whether the step had no place to end: each forward began before the backward of the forward before it."""
        return self._ahead >= MOST_FORWARDS - 1 and not self.lasts_until_optimizer

    def ends_here(self) -> bool:
        """Whether the step ends if this thread does something else now: it had a backward, and no graph waits."""
        return self.is_here() and self.backward and not self.goes_on()

    def pauses_shortly(self) -> bool:
        """Note a forward that does not train; return whether an open tape should stay open after it.

        What the loop keeps of it, such as a teacher's outputs, is still allocated in the next step and counts there.
        The tape does not follow a whole evaluation. Nor does it follow a forward in eval mode that makes a graph: the
        graph may be freed before the next peak.
        """
        self._pauses += self.ends_here()
        return self._pauses <= MOST_FORWARDS and not torch.is_grad_enabled() and self.is_alive()


def is_watched_elsewhere(step: StepUnderWay | None) -> bool:
    """Whether a step is under way that another thread watches."""
    return step is not None and step.runner.watches and not step.is_here() and step.is_alive()
