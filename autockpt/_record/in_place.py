"""Records the user's own training step as it runs: nothing runs twice, and its results stay the same.

    forward, watched · the user's loss · backward · optimizer · ... · the next forward
    ├── tape ───────────────────────────────────────────────────┤

Saved tensors wait elsewhere (`SpilledStep`), so that the step holds no more than the deepest plan does.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer

from .._calls.objects.anatomy import anatomy
from .._calls.objects.contents import Contents
from .._calls.roots import WHOLE, roots
from .._calls.values import tensors
from .._data.errors import ProfilingError
from .._ranks.buckets import Buckets
from .._ranks.fsdp import arriving, gathered_now, gathered_parameters, parameters_at_rest, units, waiting_gradients
from .._ranks.pipeline import arriving_at, kept_by, stages_of
from .._stash.base import Stash
from .._stash.spilled_step import SpilledStep
from .._stash.waiting import SavedStorage, Waiting
from .._torch import private
from .._torch.devices import AllocatorTape, Event, device_of, rounded
from .alive import beside, static_bytes
from .optimizers.shadow import state_tensors
from .watch.observer import Observer
from .written.attribute import HeldBy, Stood, Written
from .written.recorded import Recorded


class RecordedStep(SpilledStep):
    """One recorded step of the user's, from its first forward until it is closed or dropped.

    Args:
        model: the model that trains, or several as one.
        device: the device that it trains on.
        arguments: arguments of the step's first forward.
        stash: where saved tensors wait; None for a stash of its own.
        before: what the steps before it have put elsewhere; None for nothing.
        is_first: whether this is the first step of its loop.
        summed: whether ranks are to compare what calls are given.

    Raises:
        ProfilingError: a profiler runs already, in this thread or another.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        device: torch.device,
        arguments: object,
        stash: Stash | None = None,
        *,
        before: Waiting | None = None,
        is_first: bool = True,
        summed: bool = False,
    ) -> None:
        super().__init__(model, device, arguments, stash)
        self._is_first, self._summed, self._anatomy = is_first, summed, anatomy(model)
        gc.collect()  # garbage from before the step must not be freed inside it; an abandoned tape ends now
        self._on, self._buckets = device_of(device), Buckets(model)
        static = static_bytes(model, self._on, tensors(arguments))
        self._static = msgspec.structs.replace(static, other_bytes=static.other_bytes + self._buckets.bytes)
        self._stages = stages_of(roots(model).values())
        self._tape, self._clock = self._on.tape(), self._on.clock()
        self._over: object = None  # a stamp: when the last backward began, later when it ended
        self._running = False  # whether a backward is running
        self._ends: dict[int, tuple[int, ...]] = {}  # optimizer state, by marker where a step or backward ended
        self._reached: set[int] = set()
        self._given: dict[int, dict[int, int]] = {}  # by marker of a later forward: bytes of its arguments, by storage
        self._stood: dict[int, Stood] = {}
        self._went: dict[int, int] = {}  # by marker: which storage from before the step was freed there
        self._on.forget_workspaces()  # it also waits for autograd's threads, which may be freeing tensors
        self._watched: list[weakref.ref[Any]] = []
        self._look_around(private.parts((*tensors(arguments), *parameters_at_rest(model), *model.buffers())))
        self._expect(before.alone() if before is not None else [])
        _start(self._tape)
        for each in gathered_parameters(model):
            if each.untyped_storage().nbytes():  # the root's are gathered before its forward, and freed in the step
                private.move(each)
        # Ends the tape if the model is dropped or the process ends: it would crash with a profiler still running.
        self._end = weakref.finalize(self, self._tape.__exit__, ProfilingError, None, None)

    def _look_around(self, counted: list[torch.Tensor]) -> None:
        """Note what is allocated before the step besides the `counted` tensors, and make the observer.

        No tape sees these storages freed, so weak references watch them. Nothing is kept alive.
        """
        model = self.model
        around = Contents({name or "the model": module for name, module in model.named_modules()})
        own = {*map(private.storage_key, (*counted, *gathered_parameters(model))), 0}
        inside = private.parts(each for _, each in around.tensors)
        inside = [each for each in inside if private.storage_key(each) not in own]
        self._observer = Observer(model, self._tape, self._clock, self.spill, held=inside, summed=self._summed)
        others = [each for each in (*inside, *arriving_at(self._stages)) if each.device == self.device]
        gradients, brought = _gradients(model), arriving(model)  # this is freed in the step, and another is there later
        moving = [*(each for each in gradients if private.storage_key(each) not in own), *brought]
        found = beside(model, (*counted, *moving, *others), self.device.type)
        loops = [each for each in (found or {}).values() if each.device == self.device]
        self._known = found is not None and self._on.level() is None  # else in the device's own statistics
        self._note(counted, "model", watched=False)
        self._note(moving, "gradient")
        self._note(others, "model's objects")
        self._note(loops, "loop")

    def _note(self, tensors: Iterable[torch.Tensor], held_by: HeldBy, *, watched: bool = True) -> None:
        """Note storages that are allocated as the step begins, where nobody is known to hold them yet."""
        for each in tensors:
            if (key := self._tape.key(each)) and key not in self._stood:
                storage = each.untyped_storage()
                self._stood[key] = Stood(key, rounded(self._on, storage.nbytes()), held_by)
                if watched:
                    self._watched.append(weakref.ref(storage, partial(self._goes, key)))

    def _expect(self, waiting: list[SavedStorage]) -> None:
        """Note what graphs of steps before hold, up to where this step frees it: the tape sees none of it."""
        self.spill.waiting.takes_over(waiting)
        for key, each in enumerate(waiting, 1):  # keys of the tape are positive
            self._stood[-key] = Stood(-key, rounded(self._on, each.nbytes), "graph")
            self._watched += each.watch(partial(self._goes, -key, None))

    def forward(self, arguments: object, run: Callable[[], Any], name: str = WHOLE) -> Any:
        if self._observer.run.calls:
            given = [each for each in private.parts(tensors(arguments)) if each.layout == torch.strided]
            given = [each for each in given if each.device.type == self.device.type]
            sizes = {self._tape.key(each): each.untyped_storage().nbytes() for each in given}
            self._given[self._observer.mark("given", 0)] = {key: rounded(self._on, sizes[key]) for key in sizes if key}
        with self._observer.watching(in_place=True, hooked=self.hooks):
            return self.running(partial(self.call, arguments, run, name))

    def call(self, arguments: object, run: Callable[[], Any], name: str = WHOLE) -> Any:
        return self._observer.on_call(name, roots(self.model)[name], arguments, run)

    def backward_begins(self) -> None:
        if not self._running:
            self._observer.begin_backward()
        self._over, self._running = self._clock.stamp(), True
        self._as_backward_ends(self._backward_over, late=bool(units(self.model)))

    def backward_reads(self) -> None:
        if not self._running:  # no output's hook saw it begin: of a gradient penalty, or a loss on what hooks kept
            self.backward_begins()

    def _backward_over(self) -> None:
        self._over, self._running = self._clock.stamp(), False
        self._ends_here(())

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        self._ends_here([each for each in state_tensors(optimizer) if each.device.type == self.device.type])

    def _ends_here(self, state: Iterable[torch.Tensor]) -> None:
        """Mark a possible end of the step: it is the end if no backward or optimizer step comes later."""
        stays = self._observer.keys((*_gradients(self.model), *kept_by(self._stages), *arriving_at(self._stages)))
        number = self._observer.mark("backward_end", 0, self._over, stays)
        self._ends[number] = self._observer.keys(state)
        own = parameters_at_rest(self.model)
        self._reached.update(id(each) for each in own if each.is_leaf and each.grad is not None)

    def drop(self) -> None:
        super().drop()
        self._watched.clear()  # if this step is still held, its markers would be taken for those of the next one
        self._end()

    def close(self, arguments: object, *, cut: bool = False) -> Recorded:
        """End the recording, because something else begins.

        Args:
            arguments: the arguments of what begins. They are not part of the step.
            cut: whether something else than the next step's forward begins. Then part of what the loop allocates before
                that forward is not seen.

        Raises:
            ProfilingError: the tape is incomplete, no backward came, or a backward did not end.
        """
        elsewhere = (*tensors(arguments), *_gradients(self.model), *gathered_now(self.model))
        others = self._observer.keys((*elsewhere, *kept_by(self._stages)))
        try:
            if self._over is None:
                raise ProfilingError("no backward came before the next forward began")
            if self._running:
                raise ProfilingError("a backward did not run to its end")
            self._observer.end(stamp=self._over, keys=others)
            self._end.detach()
            self._tape.__exit__(None, None, None)
        finally:
            self.drop()
        return self._recorded(self._written(frozenset(others), repeats=self._is_first and not cut))

    def _written(self, elsewhere: frozenset[int], *, repeats: bool) -> Written:
        run, went = self._observer.run, {key: place for place, key in enumerate(self._went.values())}
        stood = (each._replace(goes=each.key in went) for each in self._stood.values())
        return Written(
            events=[*self._events()],
            marks=run.marks,
            # What the loop had comes in the order in which it went: that of Python's collector differs from run to run.
            stood=sorted(stood, key=lambda each: went.get(each.key, 0) if each.held_by == "loop" else 0),
            ends=self._ends,
            casts={number: read for number, mark in run.marks.items() if (read := run.casts_read(mark))},
            cast_bytes={key: rounded(self._on, size) for key, size in run.casts.items()},
            given=self._given,
            elsewhere=elsewhere,
            repeats=repeats,
            threads=self.device.type == "cpu" and private.process_group(),
            bucket_bytes=self._buckets.rebuilt_bytes,
            views=self._buckets.hold_gradients,
        )

    def _recorded(self, written: Written) -> Recorded:
        trainable = [each for each in parameters_at_rest(self.model) if each.requires_grad]
        recorded = Recorded.of(
            self._observer.run,
            written,
            self._clock,
            backward=self._on.runs_at_once,
            counted=self._static,
            anatomy=self._anatomy,
            reached=frozenset(i for i, each in enumerate(trainable) if id(each) in self._reached),
        )
        return recorded if self._known else replace(recorded, uncounted_bytes=None)

    def _events(self) -> Iterator[Event]:
        """Yield the events of the tape, with a free in the place of each marker of `_goes`."""
        for event in self._tape.events():
            went = self._went.get(event.key) if event.kind == "mark" else None
            yield event if went is None else Event("free", went)

    def _goes(self, key: int, _: object) -> None:
        self._went[self._tape.mark()] = key


def _gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    found = [each.grad for each in parameters_at_rest(model) if each.is_leaf and each.grad is not None]
    return [each for each in private.parts((*found, *waiting_gradients(model))) if each.layout == torch.strided]


def _start(tape: AllocatorTape) -> None:
    """Start a tape, or raise if another thread has one open: training does not wait for it."""
    if not private.ALONE.acquire(blocking=False):
        raise ProfilingError("a step is being recorded or measured in another thread")
    try:
        tape.__enter__()
    finally:
        private.ALONE.release()
