"""Whether the parts of a profile agree with each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from .errors import InvalidFile

if TYPE_CHECKING:
    from .profile import Profile


def validate(profile: Profile) -> None:
    """Raise `InvalidFile` where the parts of a profile contradict each other."""
    if profile.optimizer_step_bytes and not profile.optimizer:
        raise InvalidFile(f"the step of no optimizer needs {profile.optimizer_step_bytes:,} bytes")
    _check_seconds(profile)
    _check_calls(profile)
    _check_tensors(profile)
    _check_saves(profile)
    _check_functions(profile)
    _check_ops(profile)
    _check_refusals(profile)


def _check_seconds(profile: Profile) -> None:
    calls = (second for call in profile.calls for second in (call.enter_seconds, call.exit_seconds))
    tables = (*profile.functions.seconds, *profile.ops.seconds, *profile.saves.seconds)
    for second in (profile.plain_seconds, *calls, *tables):
        if not 0 <= second < math.inf:
            raise InvalidFile(f"something in the profile takes {second} s: record the step again")


def _check_calls(profile: Profile) -> None:
    calls, n_tensors = profile.calls, len(profile.tensors)
    around: list[int] = []
    for i, call in enumerate(calls):
        while around and calls[around[-1]].stop <= i:
            around.pop()
        parent = around[-1] if around else -1
        if call.parent != parent or not i < call.stop <= len(calls) or (i > 0) != (parent >= 0):
            raise InvalidFile(f"call {call.key!r} at {i} has parent {call.parent} and stop {call.stop}: not a tree")
        if i and call.stop > calls[parent].stop:
            raise InvalidFile(f"call {call.key!r} ends after its parent")
        around.append(i)
        if not call.enter <= call.exit <= profile.forward_ticks <= profile.ticks:
            raise InvalidFile(f"call {call.key!r} runs from tick {call.enter} to {call.exit}, past the end of forward")
        if not call.enter_seconds <= call.exit_seconds:
            raise InvalidFile(f"call {call.key!r} ends at {call.exit_seconds} s, before it begins")
        if any(name not in profile.buffer_bytes for name in call.buffers):
            raise InvalidFile(f"call {call.key!r} changes a buffer of which the profile does not say the bytes")
        if any(source >= len(calls) for argument in call.arguments for source in argument.sources):
            raise InvalidFile(f"call {call.key!r} takes an argument from a call that is not in the profile")
        if any(function >= len(profile.functions) for argument in call.arguments for function in argument.functions):
            raise InvalidFile(f"call {call.key!r} takes an argument from a function that is not in the profile")
        if any(t >= n_tensors for t in (*(argument.tensor for argument in call.arguments), *call.outputs)):
            raise InvalidFile(f"call {call.key!r} names a tensor that is not in the profile")
    keys = [call.key for call in calls]
    if len(set(keys)) != len(keys):
        raise InvalidFile("a call stands in the profile twice")


def _check_tensors(profile: Profile) -> None:
    tensors = profile.tensors
    _equal_columns("tensors", tensors)
    if any(later <= earlier for earlier, later in zip(tensors.birth, tensors.birth[1:], strict=False)):
        raise InvalidFile("tensors are not in the order of their births")
    for birth, natural, death in zip(tensors.birth, tensors.natural, tensors.death, strict=True):
        if not birth < natural <= profile.ticks or not birth < death <= profile.ticks:
            raise InvalidFile(f"a tensor is born at tick {birth} and dies at {natural} or {death} of {profile.ticks}")


def _check_saves(profile: Profile) -> None:
    saves, n_tensors, n_calls = profile.saves, len(profile.tensors), len(profile.calls)
    n_functions, n_ops = len(profile.functions), len(profile.ops)
    _equal_columns("saves", saves)
    _equal_columns("operators", profile.ops)  # the saves name some
    for tensor, call, function, op in zip(saves.tensor, saves.call, saves.function, saves.op, strict=True):
        if tensor >= n_tensors or call >= n_calls:
            raise InvalidFile("a save names a tensor or a call that is not in the profile")
        if function >= n_functions or op >= n_ops:
            raise InvalidFile("a save names a function or an operator that is not in the profile")
        if op >= 0 and profile.ops.function[op] != function:
            raise InvalidFile("a save names an operator of another function than its own")
    for pack, unpack, release in zip(saves.pack, saves.unpack, saves.release, strict=True):
        if not pack <= release <= profile.ticks or not pack <= unpack <= profile.ticks:
            raise InvalidFile(f"a tensor saved at tick {pack} is read at {unpack} and released at {release}")


def _check_functions(profile: Profile) -> None:
    functions, calls, n_tensors = profile.functions, profile.calls, len(profile.tensors)
    _equal_columns("functions", functions)
    if any(later <= earlier for earlier, later in zip(functions.enter, functions.enter[1:], strict=False)):
        raise InvalidFile("functions are not in the order of their begins")
    for i, call in enumerate(functions.call):
        key, enter, leave = functions.key(i), functions.enter[i], functions.exit[i]
        if call >= len(calls):
            raise InvalidFile(f"function {key!r} names a call that is not in the profile")
        if not calls[call].enter <= enter <= leave <= calls[call].exit:
            raise InvalidFile(f"function {key!r} runs from tick {enter} to {leave}, outside its call")
        if any(tensor >= n_tensors for tensor in (*functions.reads[i], *functions.makes[i])):
            raise InvalidFile(f"function {key!r} names a tensor that is not in the profile")
        if not all(enter < profile.tensors.birth[tensor] < leave for tensor in functions.makes[i]):
            raise InvalidFile(f"function {key!r} makes a tensor that is not born in it")
        for argument in functions.arguments[i]:
            if argument.tensor >= n_tensors:
                raise InvalidFile(f"function {key!r} is given a tensor that is not in the profile")
    keys = set(zip(functions.call, functions.name, functions.occurrence, strict=True))
    if len(keys) != len(functions):
        raise InvalidFile("a function of a call stands in the profile twice")


def _check_ops(profile: Profile) -> None:
    ops, functions, n_tensors = profile.ops, profile.functions, len(profile.tensors)
    for i, (function, call) in enumerate(zip(ops.function, ops.call, strict=True)):
        if function >= len(functions) or call >= len(profile.calls):
            raise InvalidFile(f"operator {ops.name[i]!r} names a function or a call that is not in the profile")
        if not profile.calls[call].enter <= ops.start[i] <= ops.stop[i] <= profile.calls[call].exit:
            raise InvalidFile(f"operator {ops.name[i]!r} runs outside its call")
        if any(tensor >= n_tensors for tensor in (*ops.reads[i], *ops.makes[i], *ops.writes[i])):
            raise InvalidFile(f"operator {ops.name[i]!r} names a tensor that is not in the profile")


def _check_refusals(profile: Profile) -> None:
    for each in profile.refusals:
        if each.index >= len(profile.calls if each.what == "call" else profile.functions):
            raise InvalidFile(f"{each.what} {each.index} is refused and not in the profile")


def _equal_columns(what: str, table: msgspec.Struct) -> None:
    if len({len(getattr(table, column)) for column in table.__struct_fields__}) != 1:
        raise InvalidFile(f"the columns of {what} differ in length")
