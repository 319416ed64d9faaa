"""Whether the parts of a profile agree with each other."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from .errors import InvalidFile

if TYPE_CHECKING:
    from .profile import Profile

TENSORS = dict.fromkeys(("tensor", "reads", "makes", "writes", "outputs"), "tensor")
INDEXED = TENSORS | {
    "call": "call",
    "sources": "call",
    "function": "function",
    "functions": "function",
    "op": "operator",
}
"""What the numbers in a column are indices of, by the name of the column."""


def validate(profile: Profile) -> None:
    """Raise `InvalidFile` where the parts of a profile contradict each other."""
    if profile.optimizer_step_bytes and not profile.optimizer:
        raise InvalidFile(f"the step of no optimizer needs {profile.optimizer_step_bytes:,} bytes")
    _check_columns(profile)
    _check_tree(profile)
    _check_ticks(profile)
    functions, ops, saves = profile.functions, profile.ops, profile.saves
    keys = chain(
        (call.key for call in profile.calls), zip(functions.call, functions.name, functions.occurrence, strict=True)
    )
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise InvalidFile(f"{twice!r} stands in the profile twice")
    if any(op >= 0 and ops.function[op] != function for op, function in zip(saves.op, saves.function, strict=True)):
        raise InvalidFile("a save names an operator of another function than its own")
    for call in profile.calls:
        if any(name not in profile.buffer_bytes for name in call.buffers):
            raise InvalidFile(f"call {call.key!r} changes a buffer of which the profile does not say the bytes")


def _check_columns(profile: Profile) -> None:
    """Check that columns are of one length, that indices are of something, and that seconds are numbers."""
    arguments = [*chain.from_iterable(call.arguments for call in profile.calls), *chain(*profile.functions.arguments)]
    tables = {
        what: {name: getattr(table, name) for name in table.__struct_fields__}
        for what, table in (
            ("functions", profile.functions),
            ("operators", profile.ops),
            ("tensors", profile.tensors),
            ("saves", profile.saves),
        )
    }
    for what, columns in tables.items():
        if len({*map(len, columns.values())}) != 1:
            raise InvalidFile(f"the columns of {what} differ in length")
    for what, rows, names in (
        ("arguments", arguments, ("tensor", "sources", "functions")),
        ("calls", profile.calls, ("outputs", "enter_seconds", "exit_seconds")),
    ):
        tables[what] = {name: [getattr(row, name) for row in rows] for name in names}
    tables["the step"] = {"plain_seconds": [profile.plain_seconds]}
    ops, tensors = len(profile.ops), len(profile.tensors)
    sizes = {"call": len(profile.calls), "function": len(profile.functions), "operator": ops, "tensor": tensors}
    for what, columns in tables.items():
        for name, column in columns.items():
            kind = INDEXED.get(name)
            if kind is not None and max(_flat(column), default=-1) >= sizes[kind]:
                raise InvalidFile(f"{name!r} of {what} names a {kind} that is not in the profile")
            if name.endswith("seconds") and not all(0 <= seconds < math.inf for seconds in column):
                raise InvalidFile(f"{name!r} of {what} is below 0 s or no number: record the step again")
    for each in profile.refusals:
        if each.index >= sizes["call" if each.what == "call" else "function"]:
            raise InvalidFile(f"{each.what} {each.index} is refused and not in the profile")


def _flat(column: Any) -> Any:
    return chain.from_iterable(column) if column and isinstance(column[0], tuple) else column


def _check_tree(profile: Profile) -> None:
    calls = profile.calls
    around: list[int] = []
    for i, call in enumerate(calls):
        while around and calls[around[-1]].stop <= i:
            around.pop()
        parent = around[-1] if around else -1
        end = calls[parent].stop if i else len(calls)
        if call.parent != parent or not i < call.stop <= end or (i > 0) != (parent >= 0):
            raise InvalidFile(f"call {call.key!r} at {i} has parent {call.parent} and stop {call.stop}: not a tree")
        around.append(i)
        if not call.enter_seconds <= call.exit_seconds:
            raise InvalidFile(f"call {call.key!r} ends at {call.exit_seconds} s, before it begins")


def _check_ticks(profile: Profile) -> None:
    calls, tensors, saves, end = profile.calls, profile.tensors, profile.saves, profile.ticks
    functions, ops = profile.functions, profile.ops
    for call in calls:
        if not call.enter <= call.exit <= profile.forward_ticks <= end:
            raise InvalidFile(f"call {call.key!r} runs from tick {call.enter} to {call.exit}, past the end of forward")
    for what, begins in (("tensors", tensors.birth), ("functions", functions.enter)):
        if any(later <= earlier for earlier, later in pairwise(begins)):
            raise InvalidFile(f"{what} are not in the order in which they begin")
    for birth, natural, death in zip(tensors.birth, tensors.natural, tensors.death, strict=True):
        if not birth < natural <= end or not birth < death <= end:
            raise InvalidFile(f"a tensor is born at tick {birth} and dies at {natural} or {death} of {end}")
    for pack, unpack, release in zip(saves.pack, saves.unpack, saves.release, strict=True):
        if not pack <= release <= end or not pack <= unpack <= end:
            raise InvalidFile(f"a tensor saved at tick {pack} is read at {unpack} and released at {release}")
    for name, within, start, stop in chain(
        zip(functions.name, functions.call, functions.enter, functions.exit, strict=True),
        zip(ops.name, ops.call, ops.start, ops.stop, strict=True),
    ):
        if not calls[within].enter <= start <= stop <= calls[within].exit:
            raise InvalidFile(f"{name!r} runs from tick {start} to {stop}, outside its call {calls[within].key!r}")
    for name, makes, enter, leave in zip(functions.name, functions.makes, functions.enter, functions.exit, strict=True):
        if not all(enter < tensors.birth[tensor] < leave for tensor in makes):
            raise InvalidFile(f"function {name!r} makes a tensor that is not born in it")
