"""Seconds of a forward that nothing but stamps watches, and of a plain step.

A forward whose operators are watched takes several times as long on small models, so seconds come from runs of their
own: stamps at the same places as the markers. They give the shares, and plain steps the total.

Where whole steps may run, stamped forwards keep what they save, as a step does: one that lets go of it works in memory
that it let go of a moment ago, in the caches, which makes additions and norms much faster and matrix products not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError
from .marks import Run
from .observer import Clock
from .routing import patched_forwards, routed_functions
from .step import TrainingStep
from .tape import storage_address

REPEATS = 5
"""Stamped forwards at most, and plain steps."""

ENOUGH_SECONDS = 0.3
"""Once the stamped forwards took this long together, no further one is made, but for the second."""

ENOUGH_STEP_SECONDS = 1.0
"""The same for steps, of which the first after a recorded one finds fresh pages and takes up to a third longer."""

LONG_SECONDS = 0.5
"""After a forward that takes so long no second one is stamped, and no second step timed: noise is small beside it."""

BACKWARD_OVER_FORWARD = 2.0
"""Seconds of backward over those of forward where it was not timed: two matrix products for each one."""

Place: TypeAlias = tuple[str, int]
"""Kind and index of a marker."""

STAMPED = ("enter", "exit", "begin", "end", "pack", "forward_end")
OF_CALLS = ("enter", "exit", "pack", "forward_end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """When what happened in a plain step.

    Attributes:
        at: seconds since the start of forward, by place; those of functions were timed apart, and their spans count.
        ops: seconds of each operator, by the run that was recorded; only shares count.
        plain_seconds: of the whole step.
    """

    at: Mapping[Place, float]
    ops: tuple[float, ...]
    plain_seconds: float


class StepSeconds(NamedTuple):
    """Seconds of a step."""

    forward: float
    step: float


def recorded_seconds(run: Run, clock: Clock, *, backward: bool) -> Seconds:
    """Return the seconds that the recorded run itself tells.

    Args:
        run: the run.
        clock: made its stamps.
        backward: whether what it tells of backward is to be believed; else backward is estimated.
    """
    marks = [mark for mark in run.in_order() if mark.stamp is not None]
    readings = clock.seconds([mark.stamp for mark in marks])
    at: dict[Place, float] = {}
    ops = [0.0] * len(run.ops)
    for mark, seconds in zip(marks, readings, strict=True):
        at[mark.kind, mark.index] = seconds
        if mark.kind in ("start", "stop"):
            ops[mark.index] += seconds if mark.kind == "stop" else -seconds
    forward = at["forward_end", 0]
    plain_seconds = at["backward_end", 0] if backward else forward * (1 + BACKWARD_OVER_FORWARD)
    return Seconds(at=at, ops=tuple(max(each, 0.0) for each in ops), plain_seconds=plain_seconds)


def timed_seconds(step: TrainingStep, run: Run, clock: Clock, recorded: Seconds, *, whole: bool) -> Seconds:
    """Time the forward of a recorded step at each of its places, and the step.

    Args:
        step: the step.
        run: what was recorded.
        clock: the device's clock.
        recorded: what that run itself tells, taken where the timed forwards pass other places.
        whole: whether plain steps may run, which hold all that is saved.
    """
    with step.gradients_aside():
        return _timed(step, run, clock, recorded, whole=whole)


def _timed(step: TrainingStep, run: Run, clock: Clock, recorded: Seconds, *, whole: bool) -> Seconds:
    at = None
    try:
        at = _stamped(step, run, clock, retain=whole)
    except torch.OutOfMemoryError:
        whole = False
    if at is None and not whole:
        at = _stamped(step, run, clock, retain=False)
    if at is None:
        at, known = dict(recorded.at), recorded
    else:
        share = recorded.plain_seconds / recorded.at["forward_end", 0]
        known = Seconds(at=at, ops=recorded.ops, plain_seconds=share * at["forward_end", 0])
    if whole:
        with contextlib.suppress(torch.OutOfMemoryError):
            forward_seconds, plain_seconds = _step_seconds(step, clock)
            slower = forward_seconds / at["forward_end", 0] if at["forward_end", 0] else 1.0
            at = {place: each * slower for place, each in at.items()}
            return Seconds(at=at, ops=known.ops, plain_seconds=plain_seconds)
    return known


def _stamped(step: TrainingStep, run: Run, clock: Clock, *, retain: bool) -> dict[Place, float] | None:
    """Stamp forwards at a run's places; all of the fastest, since what else the machine does only adds.

    Returns:
        None if they pass other places.
    """
    places = [(mark.kind, mark.index) for mark in run.in_order() if mark.kind in STAMPED]
    # Calls are timed without the mode that sees functions, which costs as much as a small function.
    expected = {True: places, False: [place for place in places if place[0] in OF_CALLS]}
    fastest: dict[bool, list[float]] = {}
    began = time.perf_counter()
    host_seconds = 0.0
    for number in range(REPEATS):
        if number > 1 and time.perf_counter() - began >= ENOUGH_SECONDS:
            break
        for functions in (True, False):
            clock.get_ahead(min(host_seconds, LONG_SECONDS))
            since = time.perf_counter()
            watch = _Stopwatch(step, clock, functions=functions, retain=retain)
            host_seconds = time.perf_counter() - since
            if watch.kinds != [kind for kind, _ in expected[functions]]:
                return None
            reading = clock.seconds(watch.stamps)
            fastest[functions] = min(fastest.get(functions, reading), reading, key=lambda each: each[-1])
        if fastest[False][-1] >= LONG_SECONDS:
            break
    stamped: dict[Place, float] = dict(zip(places, fastest[True], strict=True))
    return {**stamped, **dict(zip(expected[False], fastest[False], strict=True))}


def _step_seconds(step: TrainingStep, clock: Clock) -> StepSeconds:
    """Time the whole step with nothing watching it; the fastest counts."""
    fastest: StepSeconds | None = None
    began = time.perf_counter()
    for number in range(REPEATS):
        stamps = [clock.stamp()]
        outputs, scalar = step.forward()
        stamps.append(clock.stamp())
        gradients = step.gradients(scalar)
        stamps.append(clock.stamp())
        found = StepSeconds(*clock.seconds(stamps)[1:])
        fastest = found if fastest is None else min(fastest, found, key=lambda seconds: seconds.step)
        del outputs, scalar, gradients
        if (number and time.perf_counter() - began >= ENOUGH_STEP_SECONDS) or fastest.forward >= LONG_SECONDS:
            break
    assert fastest is not None
    return fastest


class _Stopwatch:
    """One forward, stamped, at the begin and end of functions too or not; what it saves stays until it ends, or not."""

    def __init__(self, step: TrainingStep, clock: Clock, *, functions: bool, retain: bool) -> None:
        self.kinds: list[str] = []
        self.stamps: list[object] = []
        self._clock = clock
        self._open = 0
        self._retain = retain
        self._static = {storage_address(t) for t in (*step.model.parameters(), *step.model.buffers())}
        saves = torch.autograd.graph.saved_tensors_hooks(self._pack, _no_backward)
        watched = routed_functions(self._function) if functions else contextlib.nullcontext()
        with patched_forwards(step.model, self._call), watched, saves:
            kept = step.forward()
        self._stamp("forward_end")
        del kept  # and with it what was saved, whose end is no part of forward

    def _stamp(self, kind: str) -> None:
        self.kinds.append(kind)
        self.stamps.append(self._clock.stamp())

    def _call(self, name: str, module: torch.nn.Module, arguments: object, run: Callable[[], Any]) -> Any:
        if not torch.is_grad_enabled() or private.transforms_active():
            return run()
        self._open += 1
        self._stamp("enter")
        try:
            return run()
        finally:
            self._stamp("exit")
            self._open -= 1

    def _function(self, name: str, arguments: object, run: Callable[[], Any]) -> Any:
        if not self._open or private.transforms_active():
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


def _no_backward(_: object) -> torch.Tensor:
    """Refuse to read a saved tensor back, in a forward whose saves are dropped."""
    raise ProfilingError(
        "forward takes a gradient inside itself, so it cannot be timed. Give autockpt the parts of the model that do "
        "not, or write a plan by hand."
    )
