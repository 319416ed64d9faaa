"""Times a step: runs it again with nothing but stamps of the clock, at the same places as the markers of the recording.

A recorded forward takes several times as long on small models, so the seconds come from further runs. If stamps are
cheap beside the forward, one stamped step gives everything. Else stamped forwards give the shares, and plain steps the
total.

If memory allows, stamped forwards hold what they save, as a step does. A forward that frees it would reuse memory that
is still in the processor's caches: additions and norms would be much faster than in a step, matrix products not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import torch

from ..._calls.own_errors import OwnErrors
from ..._data.errors import ProfilingError
from ..._torch import private
from ..._torch.devices import Clock, device_of
from ..step import TrainingStep
from ..tables.seconds import Place, Seconds
from ..watch.marks import Mark, SeenStep
from ..watch.routing import patched_forwards, routed_functions
from ..watch.stamps import Stamps

REPEATS = 5
"""How many runs of one kind are made at most."""

ENOUGH_SECONDS = 0.3
"""Once the stamped forwards took this long in total, no further one is made."""

ENOUGH_STEP_SECONDS = 1.0
"""The same for steps, except that a second one is always made: the first after a recording has page faults in new
memory, and takes up to a third longer."""

LONG_SECONDS = 0.5
"""After a forward that takes this long no second one is made: noise is small beside it."""

STAMP_SECONDS, CHEAP = 8e-6, 0.03
"""What a stamp takes on a slow host. Stamps are cheap if all of a forward's take at most this share of its time."""

BACKWARD_OVER_FORWARD = 2.0
"""The seconds of a backward that was not timed, as a ratio to those of forward: two matrix products for each one."""

PLAIN = ("forward_end", "backward_end")
OF_CALLS = ("enter", "exit", "pack", "forward_end")
STAMPED = (*OF_CALLS, "begin", "end")


def recorded_seconds(run: SeenStep, clock: Clock, *, backward: bool) -> Seconds:
    """Return the seconds that the recorded run itself measured.

    Args:
        run: the run.
        clock: the clock that made its stamps.
        backward: whether its measured backward is used; else backward is estimated from forward.
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
    """Seconds of a run's forwards and loss: up to the first backward, and from each later forward to its backward."""
    total, began = 0.0, 0.0
    for mark, seconds in zip(marks, readings, strict=True):
        if mark.kind == "enter" and began < 0:
            began = seconds
        elif mark.kind in ("forward_end", "backward_again") and began >= 0:
            total, began = total + seconds - began, -1.0
    return total


def timed_seconds(step: TrainingStep, run: SeenStep, clock: Clock, recorded: Seconds) -> Seconds:
    """Time the forward of a recorded step at each of its places, and the whole step.

    Args:
        step: the step, inside its `gradients_aside`.
        run: what was recorded.
        clock: the device's clock.
        recorded: the seconds that the recorded run measured. They are used if the timed forwards pass other places.
    """
    every = [(mark.kind, mark.index) for mark in run.in_order()]

    def fastest(*passes: Sequence[str], retain: bool) -> dict[Place, float] | None:
        return _fastest(step, clock, [[each for each in every if each[0] in kinds] for kinds in passes], retain=retain)

    recorded_forward = recorded.at["forward_end", 0]
    roomy = True
    try:
        # On a device these are two runs: a stamped one must never wait for the host (`get_ahead`), a plain step may.
        if device_of(step.device).runs_at_once and _are_cheap(every, recorded_forward):
            at = fastest((*STAMPED, "backward_end"), retain=True)
            if at is not None and _are_cheap(every, at["forward_end", 0]):  # the recorded one may have warmed up
                return Seconds(at=at, ops=recorded.ops, plain_seconds=at.pop(("backward_end", 0)))
        # Calls are timed in runs without the mode that sees functions: it takes as long as a small function.
        at = fastest(STAMPED, OF_CALLS, retain=True)
    except torch.OutOfMemoryError:
        roomy = False
        at = fastest(STAMPED, OF_CALLS, retain=False)
    plain = None
    if roomy:
        with contextlib.suppress(torch.OutOfMemoryError):
            plain = fastest(PLAIN, retain=False)
    return _scaled(dict(recorded.at) if at is None else at, plain, recorded)


def _scaled(at: dict[Place, float], plain: dict[Place, float] | None, recorded: Seconds) -> Seconds:
    """Return the seconds that stamped forwards would take in a plain step. Without one, they stand as they are.

    Args:
        at: seconds by place, of stamped forwards.
        plain: those of a plain step; None if none was timed.
        recorded: what the recorded run measured.
    """
    forward = at["forward_end", 0]
    if plain is None:
        plain_seconds = recorded.plain_seconds / recorded.at["forward_end", 0] * forward
        return Seconds(at=at, ops=recorded.ops, plain_seconds=plain_seconds)
    plain_over_stamped = plain["forward_end", 0] / forward if forward else 1.0
    at = {place: each * plain_over_stamped for place, each in at.items()}
    # A stamped forward on a device waits for no host, and a plain one may: what it takes longer is the host's.
    device_share = min(1 / plain_over_stamped, 1.0) if plain_over_stamped else 1.0
    return Seconds(at=at, ops=recorded.ops, plain_seconds=plain["backward_end", 0], device_share=device_share)


def _are_cheap(places: Sequence[Place], forward_seconds: float) -> bool:
    """Whether stamps at the places of a forward take a small share of its time."""
    return STAMP_SECONDS * sum(kind in STAMPED for kind, _ in places) <= CHEAP * forward_seconds


def _fastest(
    step: TrainingStep, clock: Clock, passes: Sequence[Sequence[Place]], *, retain: bool
) -> dict[Place, float] | None:
    """Time several sorts of runs in turn, and return the stamps of each sort's fastest run: noise only adds time.

    Args:
        step: the step. All of it runs if its end is among the places, else its forward.
        clock: makes the stamps.
        passes: for each sort of run, the places to stamp, in order. Of a place in several sorts, the last one counts.
        retain: whether a forward without backward holds what it saves until it ends.

    Returns:
        Seconds by place; None if a run passes other places.
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
    """Run a forward or a whole step once, and stamp its begin and some kinds of places."""
    errors = OwnErrors()
    stamps, whole = Stamps(clock, step.model, errors), "backward_end" in kinds

    def pack(tensor: torch.Tensor) -> torch.Tensor | None:
        stamps.on_save(tensor)
        with private.no_torch_functions():
            return tensor.detach() if retain or whole else None  # undetached, a saved output would hold its own graph

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
    functions = routed_functions(stamps.on_function, errors) if "begin" in kinds else nothing
    with calls, functions, saves:  # no ExitStack: an interrupt inside it could leave one of these on
        stamps.add("forward_begin")
        outputs, scalar = step.forward()
    stamps.add("forward_end")
    errors.tell()
    if whole:
        gradients = step.gradients(scalar)
        stamps.add("backward_end")
        del gradients
    del outputs, scalar  # frees what was saved: that is not part of forward
    return stamps
