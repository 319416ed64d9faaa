"""Seconds of a forward that nothing else watches, and of a plain step.

A forward under the allocator's recording is a third slower on small models, so seconds come from runs of their own:
stamps at the same places as the markers. Where a whole step was run, these forwards keep what they save, as it does:
one that lets go of it works in memory that it let go of a moment ago, in the caches, which makes additions and norms
much faster and matrix products not at all. Whoever takes the stamps scales them to the forward of a plain step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import _torch_private as private
from .assemble import WatchedRun
from .routing import patched_forwards, routed_functions
from .step import TrainingStep
from .tape import storage_address
from .watch import Clock, no_backward

REPEATS = 5
"""Timed forwards at most, and timed steps."""

ENOUGH_SECONDS = 0.3
"""Once the timed forwards took this long together, no further one is made, but for the second."""

ENOUGH_STEP_SECONDS = 1.0
"""The same for steps, of which the first after a recorded one finds fresh pages and takes up to a third longer."""

LONG_SECONDS = 1.0
"""A step that takes so long while it is recorded spends its time in operators, which being recorded does not change."""

STAMPED = ("enter", "exit", "begin", "end", "pack", "forward_end")


def stamped_seconds(
    step: TrainingStep, run: WatchedRun, dropped: WatchedRun | None, clock: Clock, *, retain: bool
) -> dict[int, float] | None:
    """Time forward at each of a run's markers.

    Args:
        step: the step.
        run: the recorded run, whose markers say where.
        dropped: the watched forward that kept nothing, if there was one; where it took long, being watched cost it
            little, and its own stamps are taken.
        clock: the device's clock.
        retain: whether the timed forwards keep what they save.

    Returns:
        Seconds since the start of forward by number of the marker, all of the fastest forward: what else the machine
        does only adds, and differences within one forward hold together. None if the timed forwards did not pass
        the same markers.
    """
    places = [i for i, mark in enumerate(run.marks) if mark.kind in STAMPED]
    kinds = [run.marks[i].kind for i in places]
    if dropped is not None:
        watched = [mark for mark in dropped.marks if mark.kind in STAMPED]
        if [mark.kind for mark in watched] != kinds:
            return None
        seconds = clock.seconds([mark.stamp for mark in watched])
        if seconds[-1] >= ENOUGH_SECONDS:
            return dict(zip(places, seconds, strict=True))
    # Calls are timed without the mode that sees functions, which costs as much as a small function.
    bare = [i for i in places if run.marks[i].kind not in ("begin", "end")]
    readings: dict[bool, list[list[float]]] = {True: [], False: []}
    began = time.perf_counter()
    for number in range(REPEATS):
        if number > 1 and time.perf_counter() - began >= ENOUGH_SECONDS:
            break
        for functions, expected in ((True, places), (False, bare)):
            watch = _Stopwatch(step, clock, functions=functions, retain=retain)
            if watch.kinds != [run.marks[i].kind for i in expected]:
                return None
            readings[functions].append(clock.seconds(watch.stamps))
    fastest = {functions: min(each, key=lambda reading: reading[-1]) for functions, each in readings.items()}
    return {**dict(zip(places, fastest[True], strict=True)), **dict(zip(bare, fastest[False], strict=True))}


def step_seconds(step: TrainingStep, clock: Clock, watched: StepSeconds) -> StepSeconds:
    """Time the whole step with nothing watching it.

    Args:
        step: the step.
        clock: the device's clock.
        watched: what it took while its memory was recorded, which is returned where that is long.

    Returns:
        Seconds of the fastest step, and of its forward.
    """
    fastest, began = watched, time.perf_counter()
    for number in range(REPEATS if watched.step < LONG_SECONDS else 0):
        stamps = [clock.stamp()]
        outputs, scalar = step.forward()
        stamps.append(clock.stamp())
        gradients = step.gradients(scalar)
        stamps.append(clock.stamp())
        found = StepSeconds(*clock.seconds(stamps)[1:])
        fastest = min(fastest, found, key=lambda seconds: seconds.step)
        del outputs, scalar, gradients
        if number and time.perf_counter() - began >= ENOUGH_STEP_SECONDS:
            break
    return fastest


class StepSeconds(NamedTuple):
    """Seconds of a step."""

    forward: float
    step: float


class _Stopwatch:
    """One forward, stamped, at the begin and end of functions too or not; what it saves stays until it ends, or not."""

    def __init__(self, step: TrainingStep, clock: Clock, *, functions: bool, retain: bool) -> None:
        self.kinds: list[str] = []
        self.stamps: list[object] = []
        self._clock = clock
        self._open = 0
        self._retain = retain
        self._static = {storage_address(t) for t in (*step.model.parameters(), *step.model.buffers())}
        saves = torch.autograd.graph.saved_tensors_hooks(self._pack, no_backward)
        watched = routed_functions(self._function) if functions else contextlib.nullcontext()
        with patched_forwards(step.model, self._call), watched, saves:
            kept = step.forward()
        self._stamp("forward_end")
        del kept  # and with it what was saved, whose end is no part of forward

    def _stamp(self, kind: str) -> None:
        self.kinds.append(kind)
        self.stamps.append(self._clock.stamp())

    def _call(self, name: str, module: torch.nn.Module, arguments: object, run: Callable[[], Any]) -> Any:
        if not torch.is_grad_enabled():
            return run()
        self._open += 1
        self._stamp("enter")
        try:
            return run()
        finally:
            self._stamp("exit")
            self._open -= 1

    def _function(self, name: str, arguments: object, run: Callable[[], Any]) -> Any:
        if not self._open:
            return run()
        self._stamp("begin")
        try:
            return run()
        finally:
            self._stamp("end")

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | None:
        with private.no_torch_functions():
            if storage_address(tensor) not in self._static:
                self._stamp("pack")
            return tensor.detach() if self._retain else None  # with its node it would hold itself
