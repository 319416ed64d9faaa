"""The question that the op-level bound answers, put to the solvers: so many bytes saved, no Python, no peak."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable

import msgspec

from autockpt._choose.candidates import Candidates
from autockpt._data.hardware.rooflines import IDLE_HOST
from autockpt._data.profile import Profile
from autockpt.solvers import Dataflow, Hold, Problem, Save, Step, Unit

__all__ = ["at_apex", "by_functions", "timed_by_operators", "with_clock"]


def timed_by_operators(profile: Profile) -> Profile:
    """Let time pass in a recorded forward only while operators run: Python and views take none.

    Args:
        profile: the recorded step.

    Returns:
        It, with a clock that stands still between operators and no host seconds.
    """
    ops, functions, birth = profile.ops, profile.functions, profile.tensors.birth
    ran = sorted(
        (max((birth[t] for t in makes), default=functions.enter[f] if f >= 0 else profile.calls[call].enter), seconds)
        for f, call, makes, seconds in zip(ops.function, ops.call, ops.makes, ops.seconds, strict=True)
    )
    ticks = [tick for tick, _ in ran]
    spent = [0.0, *itertools.accumulate(seconds for _, seconds in ran)]

    def clock(tick: int) -> float:
        return spent[bisect.bisect_left(ticks, tick)]

    working = set(ops.function)
    return msgspec.structs.replace(
        with_clock(profile, clock, [s if f in working else 0.0 for f, s in enumerate(functions.seconds)]),
        device=IDLE_HOST,
    )


def with_clock(profile: Profile, clock: Callable[[int], float], seconds: Iterable[float]) -> Profile:
    """Read the seconds of calls and saves from a clock of ticks, and let functions take the given ones."""
    return msgspec.structs.replace(
        profile,
        calls=tuple(
            msgspec.structs.replace(call, enter_seconds=clock(call.enter), exit_seconds=clock(call.exit))
            for call in profile.calls
        ),
        saves=msgspec.structs.replace(profile.saves, seconds=tuple(clock(tick) for tick in profile.saves.pack)),
        functions=msgspec.structs.replace(profile.functions, seconds=tuple(seconds)),
    )


def at_apex(candidates: Candidates) -> Problem:
    """Reduce a problem to what is saved between forward and backward.

    Args:
        candidates: the problem, and its candidates.

    Returns:
        A problem of one step: its level is the bytes that only backward and recomputation hold there.
    """
    problem = candidates.problem
    apex = bisect.bisect_right(candidates.edges, candidates.index.profile.forward_ticks) - 1
    return Problem(
        steps=(Step(name="between forward and backward", base_bytes=0),),
        calls=problem.calls,
        tensors=tuple(
            dataclasses.replace(
                tensor,
                bytes=tensor.bytes if tensor.free_step <= apex else 0,
                free_step=0,
                saves=tuple(Save(call=save.call, until=int(save.until > apex)) for save in tensor.saves),
            )
            for tensor in problem.tensors
        ),
        candidates=tuple(
            dataclasses.replace(
                candidate,
                holds=tuple(Hold(tensor=hold.tensor, until=int(hold.until > apex)) for hold in candidate.holds),
                additions=(),
            )
            for candidate in problem.candidates
        ),
    )


def by_functions(flow: Dataflow, functions: tuple[int, ...]) -> Dataflow:
    """Join the operators that one torch function ran into one unit.

    Args:
        flow: operators as units.
        functions: for each unit the function that ran it, -1 if none did.

    Returns:
        The dataflow of functions, the least that a plan can tell apart.
    """
    groups: dict[tuple[int, int], list[Unit]] = {}
    for i, (function, unit) in enumerate(zip(functions, flow.units, strict=True)):
        groups.setdefault((function, i if function < 0 else 0), []).append(unit)
    units = []
    for group in groups.values():
        made = dict.fromkeys(t for unit in group for t in unit.makes)
        read = dict.fromkeys(t for unit in group for t in unit.reads)
        units.append(
            Unit(
                name=group[0].name,
                seconds=sum(unit.seconds for unit in group),
                reads=tuple(t for t in read if t not in made),
                makes=tuple(made),
            )
        )
    return Dataflow(units=tuple(units), items=flow.items)
