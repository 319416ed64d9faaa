"""The times of a device's host in a step, while nothing keeps it waiting.

    host     ▕ launch ▕ launch ▕ save ▕ waits ▕ launch ▕ ...      waits and stamps are left out
    device        ▕ kernel ▕ kernel ▕▕        idle  ▕ kernel

CUDA takes some 1,000 launches, and then the host waits for the first. So the step waits for its device at each saved
tensor. Where more than so many launches lie between two waits, what was measured is discarded.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch

from ..._calls.own_errors import OwnErrors
from ..._data.hardware.paces import H100_HOST, QUEUE
from ..._torch import private
from ..._torch.devices import Clock
from ..step import TrainingStep
from ..tables.seconds import HostTimes, Place
from ..watch.marks import SeenStep
from ..watch.routing import patched_forwards, routed_functions
from ..watch.stamps import Stamps

RUNS = 3
"""The fastest counts: noise only adds time."""

FUNCTIONS = 200
"""By so many the cost of being seen is measured."""

SEVERAL_STREAMS = "its calls begin in several streams"

ENDS = ("enter", "exit", "forward_end")
"""Places of forward at which the host's times are kept."""


def drained_times(step: TrainingStep, clock: Clock, run: SeenStep) -> HostTimes | None:
    """Run the whole step some times, with waits for the device at every saved tensor; return the host's times.

    Args:
        step: the step, inside its `gradients_aside`.
        clock: the device's clock.
        run: what was recorded of the step.

    Returns:
        The times; None where the device is the host, or the step has no room, or goes another way than recorded.
    """
    if not clock.behind:
        return None
    fastest: HostTimes | None = None
    try:
        for _ in range(RUNS):
            stamps = _drained(step, clock)
            found = times_of(run, stamps.kinds, stamps.host, stamps.streams)
            if found is None or fastest is None or _whole(found) < _whole(fastest):
                fastest = found
    except torch.OutOfMemoryError:
        return None
    return fastest


def times_of(
    run: SeenStep, kinds: Sequence[str], readings: Sequence[float], streams: Iterable[object]
) -> HostTimes | None:
    """Return the host's times at places of a recorded step; None where a timed one passed others.

    Args:
        run: the recorded step.
        kinds: of the places of the timed one, in order.
        readings: of the host's clock there.
        streams: in which its calls began.
    """
    expected: list[Place] = [(mark.kind, mark.index) for mark in run.in_order() if mark.kind in ENDS]
    passed = [(kind, reading) for kind, reading in zip(kinds, readings, strict=True) if kind in ENDS]
    if not passed or [kind for kind, _ in passed] != [kind for kind, _ in expected] or kinds[-1] != "backward_end":
        return None
    most = most_launches(run)
    full = f"up to {most:,} launches lay between two waits for the device, whose queue may have been full"
    at = {place: reading - readings[0] for place, (_, reading) in zip(expected, passed, strict=True)}
    at["backward_end", 0] = readings[-1] - readings[0]
    return HostTimes(
        at=at,
        discarded=full if most >= QUEUE else "",
        alone=SEVERAL_STREAMS if len({*streams}) > 1 else "",
    )


def most_launches(run: SeenStep) -> int:
    """Return about how many launches lie between two saved tensors at most, in forward or in backward."""
    places = [0, *(save.ops for save in run.saves), len(run.ops)]
    most = max(later - earlier for earlier, later in pairwise(places))
    return math.ceil(most * H100_HOST.forward_kernels * H100_HOST.backward_kernels)


def _whole(times: HostTimes) -> float:
    return times.at["backward_end", 0]


def _drained(step: TrainingStep, clock: Clock) -> Stamps:
    """Run the step once."""
    errors = OwnErrors()
    stamps = Stamps(clock, step.model, errors)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        stamps.drain()
        with private.no_torch_functions():
            return tensor.detach()  # undetached, a saved output would hold its own graph

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        stamps.drain()
        return tensor

    saves = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    clock.drain()
    with patched_forwards(step.model, stamps.on_call), saves:
        stamps.add("forward_begin")
        outputs, scalar = step.forward()
    stamps.add("forward_end")
    errors.tell()
    stamps.drain()
    gradients = step.gradients(scalar)
    stamps.add("backward_end")
    del gradients, outputs, scalar
    return stamps


@functools.cache
def routing_seconds() -> float:
    """Return what it takes the host to see a function, in seconds; measured once in a process, in some milliseconds."""
    one = torch.ones(1, dtype=torch.float32, device="cpu")

    def seconds() -> float:
        began = time.perf_counter()
        for _ in range(FUNCTIONS):
            torch.neg(one)
        return time.perf_counter() - began

    def watched() -> float:
        with routed_functions(lambda name, arguments, run: run(), OwnErrors()):
            return seconds()

    with contextlib.ExitStack() as stack:
        stack.enter_context(private.outside_modes())
        plain, seen = (min(way() for _ in range(RUNS)) for way in (seconds, watched))
    return max(seen - plain, 0.0) / FUNCTIONS
