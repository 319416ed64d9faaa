"""Records the user's own training step as it runs: nothing runs twice, and its results stay the same.

    forward, watched · the user's loss · backward · optimizer · ... · the next forward
    ├── tape ───────────────────────────────────────────────────┤

Saved tensors wait elsewhere (`SpilledStep`), so that the step holds no more than the deepest plan does.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer

from .. import _torch_private as private
from .._calls.anatomy import anatomy
from .._calls.contents import Contents
from .._calls.roots import WHOLE, roots
from .._calls.values import tensors
from .._data.errors import ProfilingError
from .._data.tables import Static
from .._device import AllocatorTape, Event, device_of, rounded
from .._optimizer.shadow import state_tensors
from .._ranks.buckets import Buckets
from .._ranks.fsdp import arriving, gathered_now, gathered_parameters, parameters_at_rest, units, waiting_gradients
from .._ranks.pipeline import arriving_at, kept_by, stages_of
from .._stash.base import Stash
from .._stash.spilled_step import SpilledStep
from .._stash.waiting import SavedStorage, Waiting
from .._watch.observer import Observer
from .alive import beside
from .build import static_bytes
from .excerpt import Excerpt
from .prelude import alike, made_since, unlike_bytes
from .recorded import Recorded
from .timing import recorded_seconds


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
        self._static = static_bytes(model, self._on, tensors(arguments))
        self._stages = stages_of(roots(model).values())
        self._tape, self._clock = self._on.tape(), self._on.clock()
        self._over: object = None  # a stamp: when the last backward began, later when it ended
        self._running = False  # whether a backward is running
        self._states: dict[int, tuple[int, ...]] = {}  # optimizer state, by marker where a step or backward ended
        self._reached: set[int] = set()
        self._given: dict[int, dict[int, int]] = {}  # by marker of a later forward: bytes of its arguments, by storage
        self._gone: dict[int, int] = {}  # by marker: which storage from before the step was freed there
        self._on.forget_workspaces()  # it also waits for autograd's threads, which may be freeing tensors
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
        held = [*(each for each in gradients if private.storage_key(each) not in own), *others, *brought]
        stands = beside(model, (*counted, *held), self.device.type)
        others = [each for each in (stands or {}).values() if each.device == self.device]
        self._uncounted = {self._tape.key(each): rounded(self._on, each.untyped_storage().nbytes()) for each in others}
        untold = stands is None or self._on.level() is not None  # unknown, or in the device's own statistics
        self._uncounted_bytes = None if untold else sum(self._uncounted.values())
        storages = {self._tape.key(each): each.untyped_storage() for each in held}
        self._own = {*self._observer.keys(counted), *storages}
        self._stays = storages.keys() - {*self._observer.keys((*gradients, *brought))}
        watched = storages | {self._tape.key(each): each.untyped_storage() for each in others}
        self._watched: list[weakref.ref[Any]] = [
            weakref.ref(storage, partial(self._went, key)) for key, storage in watched.items()
        ]
        self._held_bytes = {key: rounded(self._on, storage.nbytes()) for key, storage in storages.items()}

    def _expect(self, waiting: list[SavedStorage]) -> None:
        """Count what graphs of steps before hold, up to where this step lets go of them: the tape sees none of it."""
        self.spill.waiting.takes_over(waiting)
        for key, each in enumerate(waiting, 1):  # keys of the tape are positive
            self._held_bytes[-key] = rounded(self._on, each.nbytes)
            self._watched += each.watch(partial(self._went, -key, None))
        self._stays |= {key for key in self._held_bytes if key < 0}

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
        self._states[number] = self._observer.keys(state)
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
        run = self._observer.run
        run.threads = self.device.type == "cpu" and private.process_group()
        made = made_since(self._tape.events(), self._last(), frozenset(others))
        buckets = self._buckets.among(reversed([*enumerate(made)]))  # reversed: DDP makes them last, before the forward
        made = [size for number, size in enumerate(made) if number not in buckets]
        self._forget_graph_of_failure()
        before = {key: self._uncounted[key] for key in self._gone.values() if key in self._uncounted}
        before = alike(before, made) if self._is_first and not cut else before
        casts = {key: size for key, size in self._older_casts().items() if key not in before}
        run.events, left, given = self._of_the_step(frozenset(others), before | casts)
        uncounted_bytes = self._uncounted_bytes
        if uncounted_bytes is not None:
            uncounted_bytes -= sum(self._uncounted.get(key, 0) for key in casts)
        trainable = [each for each in parameters_at_rest(self.model) if each.requires_grad]
        return Recorded(
            run=run,
            seconds=recorded_seconds(run, self._clock, backward=self._on.runs_at_once),
            static=self._standing(before, left, given),
            anatomy=self._anatomy,
            reached=frozenset(i for i, each in enumerate(trainable) if id(each) in self._reached),
            uncounted_bytes=uncounted_bytes,
            stood=(*before.values(), *given),
            made=tuple(made),
        )

    def _forget_graph_of_failure(self) -> None:
        """Count no graph of a step before where this one lets go of none: one was left by a step that failed.

        A loop that holds graphs anew in each step lets go of an older one in each.
        """
        waiting = {key for key in self._stays if key < 0}
        if waiting.isdisjoint(self._gone.values()):
            self._stays -= waiting
            self._held_bytes = {key: size for key, size in self._held_bytes.items() if key not in waiting}

    def _older_casts(self) -> dict[int, int]:
        """Return the sizes, by storage, of the casts that autocast had cached before the step."""
        run, live, older = self._observer.run, set[int](), dict[int, int]()
        for event in self._events():
            if event.kind == "alloc":
                live.add(event.key)
            elif event.kind == "free":
                live.discard(event.key)
            else:
                read = run.casts_read(run.marks[event.key])
                older.update((key, rounded(self._on, run.casts[key])) for key in read if key not in live)
        return older

    def _standing(self, before: Mapping[int, int], left: list[int], given: list[int]) -> Static:
        """Return what stands under the step: what it leaves behind, beyond what it found; see `_of_the_step`."""
        went = self._stays.intersection(self._gone.values())  # freed here, as the next step frees what this one leaves
        went = {key for key in went if key > 0}  # what graphs hold is spilled: the tape has not seen it left
        left_bytes = unlike_bytes(left, before.values()) - sum(self._held_bytes[key] for key in went)
        stood_bytes = sum(self._held_bytes[key] for key in self._stays.difference(self._gone.values()))
        return msgspec.structs.replace(
            self._static,
            input_bytes=self._static.input_bytes + sum(given),
            other_bytes=self._buckets.bytes + max(left_bytes, 0) + stood_bytes,
        )

    def _last(self) -> int:
        """Return the marker where the step is over; -1 if there is none."""
        last, marks = max(self._states, default=-1), self._observer.run.marks
        if any(number > last and mark.kind == "enter" for number, mark in marks.items()):
            return max(marks)  # a last forward had no backward: its graph is only held
        return last

    def _of_the_step(
        self, others: frozenset[int], before: Mapping[int, int]
    ) -> tuple[list[Event], list[int], list[int]]:
        """Return the step's events, the sizes that it leaves behind, and those of later forwards' own arguments.

        The step ends with its last backward or optimizer step. What was allocated `before` it and freed in it is part
        of it. Optimizer state and DDP buckets are not: the next step reuses them. Other tensors that outlive the step
        count as left behind: the next step allocates its own before those are freed.
        """
        last = self._last()
        stays = self._stays.difference(self._gone.values())
        stood = [(key, size) for key, size in self._held_bytes.items() if key not in stays]
        step = Excerpt([*stood, *before.items()])
        state: set[int] = set()
        seen: set[int] = set()
        casts: set[int] = set()
        given: dict[int, int] = {}
        for event in self._events():
            if event.kind == "mark":
                came = self._given.get(event.key, {})
                given.update((key, came[key]) for key in came if key not in step.live and key not in self._own)
                mark = self._observer.run.marks[event.key]
                seen.update(step.places(mark.keys))
                casts.update(step.places(self._observer.run.casts_read(mark)))
                state.update(step.places(self._states.get(event.key, ())))
                if event.key in self._states and event.key != last:
                    continue  # another backward or optimizer step follows
            step.take(event)
            step.over = step.over or (event.kind == "mark" and event.key == last)
        alive = {place: key in others for key, place in step.live.items() if place in seen - state}
        left = {place for place, elsewhere in alive.items() if not elsewhere}
        first = sorted(alive if self._buckets.hold_gradients else left)  # buckets come first: made before the forward
        aside = state | self._buckets.among((place, step.events[place].bytes) for place in first)
        left -= aside | casts  # the next step reads the same casts
        own = [event for place, event in enumerate(step.events) if place not in aside]
        return own, [step.events[place].bytes for place in left], [*given.values()]

    def _events(self) -> Iterator[Event]:
        """Yield the events of the tape, with a free in the place of each marker of `_went`."""
        for event in self._tape.events():
            gone = self._gone.get(event.key) if event.kind == "mark" else None
            yield event if gone is None else Event("free", gone)

    def _went(self, key: int, _: object) -> None:
        self._gone[self._tape.mark()] = key


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
