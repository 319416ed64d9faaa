"""A step under a plan as a trace in the trace-event format, which Perfetto and Chrome open. Everything is predicted.

process   the model, predicted
├ step      spans: forward, its calls inside one another; backward, by the calls whose saves it reads; the optimizer
├ replays   spans: segments that run again
└ counters  the level, and what it consists of
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..._data.plan import Plan
from ..._data.profile import CallRecord, Profile
from ...solvers.units import format_bytes
from ..explain.chart import LAYERS
from ..explain.names import label
from .course import Course, follow

__all__ = ["trace_json"]

PROCESS, STEP, REPLAYS = 1, 1, 2
"""Process and threads of the trace."""

Event = dict[str, Any]


def trace_json(profile: Profile, plan: Plan) -> bytes:
    """Return the step under `plan` as one JSON document: an object with ``traceEvents``.

    Args:
        profile: the recorded step.
        plan: the plan; one without segments gives the plain step.

    Raises:
        InvalidProblem: two segments overlap.
        NotApplicable: the plan does not fit the recorded step.

    Timestamps are microseconds in whole nanoseconds, so that spans nest exactly. O(calls + saves + steps of the judge).
    """
    course = follow(profile, plan)
    spans = [*_forward(profile, course), *_backward(profile, course), *_replays(course)]
    # At one time the longer span opens first, and holds the others.
    events = sorted([*spans, *_counters(course), _peak(course)], key=lambda event: (event["ts"], -event.get("dur", 0)))
    return msgspec.json.encode(
        {
            "traceEvents": [*_names(profile, plan), *events],
            "displayTimeUnit": "ms",
            "otherData": {
                "model": profile.model,
                "predicted": _predicted(profile, course),
                "device": profile.device,
                "recorded": profile.recorded,
                "predicted peak bytes": course.timeline.peak_bytes,
                "budget bytes": plan.budget_bytes,
                "recompute seconds": course.clock.delays[-1] if course.timed else None,
            },
        }
    )


def _predicted(profile: Profile, course: Course) -> str:
    """Say what the seconds are worth."""
    times = "recorded" if profile.times == "measured" else f"predicted for {profile.device}"
    if not course.timed:
        times = "not known, so that a tick of the profile counts a microsecond"
    return (
        f"All memory is predicted. Forward seconds are {times}; those of backward are shared out among its calls as "
        "those of forward are; the optimizer step was not timed, and its span is only there to be seen."
    )


def _names(profile: Profile, plan: Plan) -> Iterator[Event]:
    what = "predicted step" if plan.segments else "predicted plain step"
    yield {"ph": "M", "pid": PROCESS, "tid": 0, "name": "process_name", "args": {"name": f"{profile.model}, {what}"}}
    for thread, name in ((STEP, "step"), (REPLAYS, "replays")):
        yield {"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _span(name: str, category: str, start: float, stop: float, *, thread: int = STEP, **details: object) -> Event:
    begin = _nanoseconds(start)
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": thread,
        "name": name,
        "cat": category,
        "ts": begin / 1000,
        "dur": (_nanoseconds(stop) - begin) / 1000,
        "args": details,
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _forward(profile: Profile, course: Course) -> Iterator[Event]:
    at = course.clock.at
    yield _span("forward", "phase", 0.0, course.forward_seconds)
    for call in profile.calls:
        name = label(call.key) if call.name else profile.model
        yield _span(name, "forward", at(call.enter), at(call.exit), module=call.class_name)


def _backward(profile: Profile, course: Course) -> Iterator[Event]:
    """Spans of calls in backward: what is read there, until something else is, is done for the call that saved it."""
    yield _span("backward", "phase", course.forward_seconds, course.backward_seconds)
    saves = profile.saves
    reads = sorted(
        (unpack, call) for unpack, call in zip(saves.unpack, saves.call, strict=True) if unpack < profile.ticks
    )
    open_since: list[tuple[int, float]] = []  # calls from the root down, and when each was opened
    for tick, call in reads:
        now = course.clock.at(tick)
        path = _path(profile.calls, call)
        shared = sum(1 for (one, _), other in zip(open_since, path, strict=False) if one == other)
        yield from (_backward_span(profile, *each, now) for each in open_since[shared:])
        open_since = [*open_since[:shared], *((other, now) for other in path[shared:])]
    yield from (_backward_span(profile, *each, course.backward_seconds) for each in open_since)
    if course.edges[-1] > course.backward_seconds:
        yield _span("optimizer step", "phase", course.backward_seconds, course.edges[-1])


def _backward_span(profile: Profile, call: int, start: float, stop: float) -> Event:
    record = profile.calls[call]
    name = label(record.key) if record.name else profile.model
    return _span(f"backward of {name}", "backward", start, stop, module=record.class_name)


def _path(calls: Sequence[CallRecord], call: int) -> list[int]:
    """The calls around a call from the root down, itself included."""
    path = [call]
    while calls[path[-1]].parent >= 0:
        path.append(calls[path[-1]].parent)
    return path[::-1]


def _replays(course: Course) -> Iterator[Event]:
    for replay in course.replays:
        stop = replay.start_seconds + replay.seconds
        yield _span(f"replay of {replay.name}", "replay", replay.start_seconds, stop, thread=REPLAYS)


def _counters(course: Course) -> Iterator[Event]:
    """The level from each step of the judge on, and its parts."""
    for step, start in zip(course.timeline.steps, course.edges, strict=False):
        parts = {name: sum(getattr(step, part) for part in members) for _, name, members in LAYERS}
        for name, values in (("predicted memory", {"bytes": step.level_bytes}), ("predicted", parts)):
            yield {"ph": "C", "pid": PROCESS, "name": name, "ts": _nanoseconds(start) / 1000, "args": values}
    nothing = {"ph": "C", "pid": PROCESS, "name": "predicted memory", "ts": _nanoseconds(course.edges[-1]) / 1000}
    yield {**nothing, "args": {"bytes": course.timeline.steps[-1].level_bytes}}


def _peak(course: Course) -> Event:
    peak = course.timeline.steps[course.timeline.peak]
    return {
        "ph": "i",
        "s": "p",
        "pid": PROCESS,
        "tid": STEP,
        "name": f"predicted peak, {format_bytes(peak.level_bytes)}",
        "ts": _nanoseconds(course.peak_seconds) / 1000,
        "args": {"bytes": peak.level_bytes, "where": peak.name},
    }
