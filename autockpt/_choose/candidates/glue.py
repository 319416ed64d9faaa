"""Glue as calls: torch functions of a call's own code, stated as calls of their own, so that segments reach them.

own code of the root    enter  down.0  max_pool2d#0  down.1  …  interpolate#0  cat#0  up.0  …
as calls                1      5       14            15         41             42     43
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence

import msgspec

from ..._data.profile import Profile
from ..._data.tables import Argument, CallRecord


def is_glue(call: CallRecord) -> bool:
    """Whether a call stands for a torch function: names of modules contain no ``#``."""
    return "#" in call.name


def with_glue(profile: Profile, glue: Sequence[int]) -> tuple[Profile, tuple[int, ...]]:
    """State torch functions as calls of those whose own code calls them.

    Args:
        profile: the recorded step.
        glue: the functions, ascending.

    Returns:
        The step with those functions as calls without children, and for each of its calls the new index.

    O(calls and functions).
    """
    functions, calls = profile.functions, profile.calls
    if not glue:
        return profile, tuple(range(len(calls)))
    enter = [functions.enter[f] for f in glue]
    # Pre-order is the order of time: a call moves by the glue before it.
    moved = tuple(i + bisect.bisect_left(enter, call.enter) for i, call in enumerate(calls))
    entered = [call.enter for call in calls]
    place = {f: number + bisect.bisect_left(entered, enter[number]) for number, f in enumerate(glue)}

    def given(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(
            msgspec.structs.replace(
                argument,
                sources=(
                    *(moved[call] for call in argument.sources),
                    *(place[f] for f in argument.functions if f in place),
                ),
            )
            for argument in arguments
        )

    records = {
        moved[i]: msgspec.structs.replace(
            call,
            parent=moved[call.parent] if call.parent >= 0 else -1,
            stop=call.stop + bisect.bisect_left(enter, call.exit),
            arguments=given(call.arguments),
        )
        for i, call in enumerate(calls)
    }
    for f, here in place.items():
        parent = calls[functions.call[f]]
        begin = parent.enter_seconds
        records[here] = CallRecord(
            name=f"{parent.key}/{functions.name[f]}",
            occurrence=functions.occurrence[f],
            parent=moved[functions.call[f]],
            stop=here + 1,
            class_name="",
            enter=functions.enter[f],
            exit=functions.exit[f],
            enter_seconds=begin,
            exit_seconds=begin + functions.seconds[f],
            arguments=given(functions.arguments[f]),
            outputs=functions.makes[f],
            signature=f"{parent.signature}/{functions.key(f)}",
            draws=functions.draws[f],
        )

    def of(calls_of: tuple[int, ...], functions_of: tuple[int, ...] | range) -> tuple[int, ...]:
        return tuple(place.get(f, moved[call]) for call, f in zip(calls_of, functions_of, strict=True))

    saves, ops = profile.saves, profile.ops
    stated = msgspec.structs.replace(
        profile,
        calls=tuple(records[i] for i in range(len(records))),
        functions=msgspec.structs.replace(functions, call=of(functions.call, range(len(functions)))),
        ops=msgspec.structs.replace(ops, call=of(ops.call, ops.function)),
        saves=msgspec.structs.replace(saves, call=of(saves.call, saves.function)),
        refusals=tuple(
            msgspec.structs.replace(each, index=moved[each.index]) if each.what == "call" else each
            for each in profile.refusals
        ),
    )
    return stated, moved


def glue_of(profile: Profile, parents: Collection[int]) -> list[int]:
    """Find the functions that the parents' own code calls, that can run again, and that a segment may want to.

    Those are left out that neither save anything nor lead to what a call is given, or to what one of them saves.
    """
    functions, saves = profile.functions, profile.saves
    # Of most calls that call no module the profile does not tell what their functions are given.
    told = {call for call, arguments in zip(functions.call, functions.arguments, strict=True) if arguments}
    parents = told.intersection(parents) - _reaching_past(profile)
    refused = profile.refused("function")
    own = {f for f, call in enumerate(functions.call) if call in parents and f not in refused}
    wanted = {f for f in saves.function if f in own}
    for call in profile.calls:
        if call.parent in parents:
            wanted.update(f for argument in call.arguments for f in argument.functions if f in own)
    todo = list(wanted)
    while todo:
        led = {f for argument in functions.arguments[todo.pop()] for f in argument.functions if f in own} - wanted
        wanted |= led
        todo += led
    return sorted(wanted)


def _reaching_past(profile: Profile) -> set[int]:
    """Calls whose own code calls modules that are not its own, or past one that is called itself.

    Frames would take what those run for the caller's own code, and count other functions than the recorder did.
    """
    names = {call.name for call in profile.calls}
    found: set[int] = set()
    for call in profile.calls[1:]:
        prefix = profile.calls[call.parent].name
        if prefix and not call.name.startswith(f"{prefix}."):
            found.add(call.parent)
            continue
        parts = call.name.removeprefix(f"{prefix}.").split(".")[:-1] if prefix else call.name.split(".")[:-1]
        for part in parts:
            prefix = f"{prefix}.{part}" if prefix else part
            if prefix in names:
                found.add(call.parent)
    return found
