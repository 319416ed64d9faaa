"""Seconds of runs that nothing but stamps watches, at the same places as the markers of the recorded one.

A forward whose operators are watched takes several times as long on small models, so seconds come from runs of their
own. Where stamps are cheap beside the forward, one stamped step tells all; else stamped forwards give the shares, and
plain steps the total.

Where whole steps may run, stamped forwards keep what they save, as a step does: one that lets go of it works in memory
that it let go of a moment ago, in the caches, which makes additions and norms much faster and matrix products not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError
from .._device import Clock, device_of
from .._watch.marks import Mark, SeenStep
from .._watch.routing import patched_forwards, routed_functions
from .._watch.stamps import Stamps
from .step import TrainingStep

REPEATS = 5
"""Runs of one kind at most."""

ENOUGH_SECONDS = 0.3
"""Once the stamped forwards took this long together, no further one is made."""

ENOUGH_STEP_SECONDS = 1.0
"""The same for steps, but for the second: the first after a recorded one finds fresh pages, and takes up to a third
longer."""

LONG_SECONDS = 0.5
"""After a forward that takes so long no second one is made: noise is small beside it."""

STAMP_SECONDS, CHEAP = 8e-6, 0.03
"""What a stamp takes on a slow host, and the share of a forward up to which all of its stamps are cheap."""

BACKWARD_OVER_FORWARD = 2.0
"""Seconds of backward over those of forward where it was not timed: two matrix products for each one."""

Place: TypeAlias = tuple[str, int]
"""Kind and index of a marker."""

PLAIN = ("forward_end", "backward_end")
OF_CALLS = ("enter", "exit", "pack", "forward_end")
STAMPED = (*OF_CALLS, "begin", "end")


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

    def scaled(self, factor: float) -> Seconds:
        """Return the same step, slower by a factor."""
        at = {place: each * factor for place, each in self.at.items()}
        return Seconds(at=at, ops=self.ops, plain_seconds=self.plain_seconds * factor)


def recorded_seconds(run: SeenStep, clock: Clock, *, backward: bool) -> Seconds:
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
    forward = _forward_seconds(marks, readings)
    plain_seconds = at["backward_end", 0] if backward else forward * (1 + BACKWARD_OVER_FORWARD)
    return Seconds(at=at, ops=tuple(max(each, 0.0) for each in ops), plain_seconds=plain_seconds)


def _forward_seconds(marks: Sequence[Mark], readings: Sequence[float]) -> float:
    """Seconds of the forwards of a run, loss included: up to the first backward, and of each that came after one."""
    total, began = 0.0, 0.0
    for mark, seconds in zip(marks, readings, strict=True):
        if mark.kind == "enter" and began < 0:
            began = seconds
        elif mark.kind in ("forward_end", "backward_again") and began >= 0:
            total, began = total + seconds - began, -1.0
    return total


def timed_seconds(step: TrainingStep, run: SeenStep, clock: Clock, recorded: Seconds) -> Seconds:
    """Time the forward of a recorded step at each of its places, and the step.

    Args:
        step: the step, its gradients aside.
        run: what was recorded.
        clock: the device's clock.
        recorded: what that run itself tells, taken where the timed forwards pass other places.
    """
    every = [(mark.kind, mark.index) for mark in run.in_order()]

    def fastest(*passes: Sequence[str], retain: bool) -> dict[Place, float] | None:
        return _fastest(step, clock, [[each for each in every if each[0] in kinds] for kinds in passes], retain=retain)

    recorded_forward = recorded.at["forward_end", 0]
    roomy = True
    try:
        stamps_seconds = STAMP_SECONDS * sum(kind in STAMPED for kind, _ in every)
        # A device has to be kept from waiting for the host while it is stamped, and not while a step is timed.
        if device_of(step.device).runs_at_once and stamps_seconds <= CHEAP * recorded_forward:
            at = fastest((*STAMPED, "backward_end"), retain=True)
            if at is not None and stamps_seconds <= CHEAP * at["forward_end", 0]:  # the recorded one may have warmed up
                return Seconds(at=at, ops=recorded.ops, plain_seconds=at.pop(("backward_end", 0)))
        # Calls are timed without the mode that sees functions, which costs as much as a small function.
        at = fastest(STAMPED, OF_CALLS, retain=True)
    except torch.OutOfMemoryError:
        roomy = False
        at = fastest(STAMPED, OF_CALLS, retain=False)
    at = dict(recorded.at) if at is None else at
    forward = at["forward_end", 0]
    plain = None
    if roomy:
        with contextlib.suppress(torch.OutOfMemoryError):
            plain = fastest(PLAIN, retain=False)
    slower = plain["forward_end", 0] / forward if plain and forward else 1.0
    plain_seconds = plain["backward_end", 0] if plain else recorded.plain_seconds / recorded_forward * forward
    at = {place: each * slower for place, each in at.items()}
    return Seconds(at=at, ops=recorded.ops, plain_seconds=plain_seconds)


def _fastest(
    step: TrainingStep, clock: Clock, passes: Sequence[Sequence[Place]], *, retain: bool
) -> dict[Place, float] | None:
    """Stamp runs at some places, each sort in its turn; all of the fastest, since what else the machine does only adds.

    Args:
        step: what runs: the whole step where its end is among the places, else its forward.
        clock: stamps it.
        passes: the places of each sort of run, in order; of a place that several pass, the last one tells.
        retain: whether what a forward saves stays until it ends, where no backward follows.

    Returns:
        None if they pass other places.
    """
    fastest: list[list[float]] = [[] for _ in passes]
    whole = ("backward_end", 0) in passes[0]
    enough = ENOUGH_STEP_SECONDS if whole else ENOUGH_SECONDS
    began = time.perf_counter()
    host_seconds = forward = 0.0
    for number in range(REPEATS):
        for index, places in enumerate(passes):
            kinds = [kind for kind, _ in places]
            if not whole:
                clock.get_ahead(min(host_seconds, LONG_SECONDS))
            since = time.perf_counter()
            stamps = _stamped(step, clock, kinds, retain=retain)
            host_seconds = time.perf_counter() - since
            if stamps.kinds[1:] != kinds:
                return None
            reading = clock.seconds(stamps.readings)[1:]
            fastest[index] = min(fastest[index] or reading, reading, key=lambda each: each[-1])
            forward = fastest[index][kinds.index("forward_end")]
        if forward >= LONG_SECONDS or ((number or not whole) and time.perf_counter() - began >= enough):
            break
    return {
        place: each
        for own, readings in zip(passes, fastest, strict=True)
        for place, each in zip(own, readings, strict=True)
    }


def _stamped(step: TrainingStep, clock: Clock, kinds: Sequence[str], *, retain: bool) -> Stamps:
    """Stamp one run as it begins and where some kinds of places are passed: a forward, or a step."""
    stamps, whole = Stamps(clock, step.model), "backward_end" in kinds

    def pack(tensor: torch.Tensor) -> torch.Tensor | None:
        stamps.on_save(tensor)
        with private.no_torch_functions():
            return tensor.detach() if retain or whole else None  # with its node it would hold itself

    def unpack(tensor: torch.Tensor | None) -> torch.Tensor:
        if tensor is None or stamps.kinds[-1] != "forward_end":
            raise ProfilingError(
                "forward takes a gradient inside itself, so it cannot be timed. Give autockpt the parts of the model "
                "that do not, or write a plan by hand."
            )
        return tensor

    nothing = contextlib.nullcontext()
    saves = torch.autograd.graph.saved_tensors_hooks(pack, unpack) if "pack" in kinds else nothing
    calls = patched_forwards(step.model, stamps.on_call) if "enter" in kinds else nothing
    functions = routed_functions(stamps.on_function) if "begin" in kinds else nothing
    with calls, functions, saves:  # no stack of contexts: an interrupt inside it would leave one on
        stamps.add("forward_begin")
        outputs, scalar = step.forward()
    stamps.add("forward_end")
    if whole:
        gradients = step.gradients(scalar)
        stamps.add("backward_end")
        del gradients
    del outputs, scalar  # and with them what was saved, whose end is no part of forward
    return stamps
