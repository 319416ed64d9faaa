"""Whether the parts of a profile agree with each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from operator import le, lt
from typing import Any, TypeAlias

import msgspec

from ...solvers.units import shown
from ..errors import InvalidFile
from ..text.amounts import MOST_SUM
from .step_record import StepRecord

TENSORS = dict.fromkeys(("tensor", "reads", "makes", "writes", "outputs", "attributes"), "tensor")
CALLS, FUNCTIONS = {"call": "call", "sources": "call"}, {"function": "function", "functions": "function"}
CLOSE = 1e-6
"""Share by which seconds may differ through rounding."""

MOST_TICKS = 20
"""Most ticks per row. A step has fewer than two, or more if operators allocate many buffers of their own."""

INDEXED = TENSORS | CALLS | FUNCTIONS | {"op": "operator"}
"""What the numbers in a column are indices of, by the name of the column."""

OF_REFUSALS = {"call": "call", "run": "call", "unit": "call", "tensor": "tensor"}
"""What the index of a refusal is an index of, by what is refused. All others are indices of functions."""


def validate(step: StepRecord) -> None:
    """Raise `InvalidFile` where the parts of a profile contradict each other."""
    if step.optimizer_step_bytes and not step.optimizer:
        raise InvalidFile(f"the optimizer's step needs {step.optimizer_step_bytes:,} bytes, but no optimizer is named")
    _check_columns(step)
    _check_sizes(step)
    _check_tree(step)
    _check_order(step)
    _check_names(step)
    _check_saves(step)
    _check_buffers(step)
    _check_host(step)


def _check_columns(step: StepRecord) -> None:
    """Check that indices are in range, and that seconds are finite and not negative."""
    sizes = {"call": len(step.calls), "function": len(step.functions), "operator": len(step.ops)}
    sizes["tensor"] = len(step.tensors)
    for what, name, column in _columns(step):
        kind = INDEXED.get(name)
        flat = chain.from_iterable(column) if column and isinstance(column[0], tuple) else column
        if kind is not None and max(flat, default=-1) >= sizes[kind]:
            raise InvalidFile(f"{name!r} of {what} names a {kind} that is not in the profile")
        if name.endswith("seconds") and not all(0 <= seconds < math.inf for seconds in column):
            raise InvalidFile(f"{name!r} of {what} is below 0 s or no number: record the step again")


def _check_order(step: StepRecord) -> None:
    """Check that ticks ascend where they must. O(rows), a column at a time: derived profiles are checked as well."""
    for what, begins in (("tensors", step.tensors.birth), ("functions", step.functions.enter)):
        if not all(map(lt, begins, begins[1:])):
            raise InvalidFile(f"{what} are not in the order in which they begin")
    if any(save >= len(step.saves) for save, *_ in (*step.rereads, *step.kept_reads)):
        raise InvalidFile("a save that is not in the profile is read again")
    for what, names, columns in _spans(step):
        if not all(all(map(le, earlier, later)) for earlier, later in pairwise(columns)):
            rows = enumerate(zip(*columns, strict=True))
            row, ticks = next((row, ticks) for row, ticks in rows if not all(map(le, ticks, ticks[1:])))
            said = what.format(shown(names[row])) if names else what
            raise InvalidFile(f"{said}: its ticks are {', '.join(map(str, ticks))}, which should ascend")


def _check_names(step: StepRecord) -> None:
    """Check that no two calls have one name."""
    functions = step.functions
    keys = chain(
        (call.key for call in step.calls), zip(functions.call, functions.name, functions.occurrence, strict=True)
    )
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise InvalidFile(f"{shown(twice)} is in the profile twice")


def _check_saves(step: StepRecord) -> None:
    """Check that a save and its operator belong to one function."""
    ops, saves = step.ops, step.saves
    if any(op >= 0 and ops.function[op] != function for op, function in zip(saves.op, saves.function, strict=True)):
        raise InvalidFile("a save names an operator of another function than its own")


def _check_buffers(step: StepRecord) -> None:
    """Check that the bytes of each buffer that a call changes are known."""
    for call in step.calls:
        if any(name not in step.buffer_bytes for name in call.buffers):
            raise InvalidFile(f"call {shown(call.key)} changes a buffer whose bytes are not in the profile")


def _check_host(step: StepRecord) -> None:
    """Check that the host's seconds are those of this step's calls."""
    host = step.host
    if host is None:
        return
    if host.is_known and len(host.call_seconds) != len(step.calls):
        raise InvalidFile(
            f"the host's seconds are those of {len(host.call_seconds):,} calls, and the step has {len(step.calls):,}"
        )
    if host.is_known and (host.discarded or host.alone):
        raise InvalidFile(f"the host's seconds are known, and are said not to be: {host.discarded or host.alone}")
    if any(seconds > host.forward_seconds * (1 + CLOSE) for seconds in host.call_seconds):
        raise InvalidFile(f"a call takes more of the host than the {host.forward_seconds:.3g} s of all forward")


def _check_sizes(step: StepRecord) -> None:
    """Check that the clock and the bytes are plausible, before arrays of that length are made."""
    rows = len(step.calls) + len(step.functions) + len(step.ops) + len(step.tensors) + len(step.saves)
    if step.ticks > MOST_TICKS * (rows + 100):
        raise InvalidFile(f"the clock has {step.ticks:,} ticks, for {rows:,} rows of calls, tensors and saves")
    if step.static.total_bytes + sum(step.tensors.bytes) > MOST_SUM:
        raise InvalidFile("the tensors of the step add up to more bytes than any memory has")
    if step.static.total_bytes < 0:
        raise InvalidFile(f"{step.static.total_bytes:,} bytes are allocated before the step, which is below 0")


def _columns(step: StepRecord) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield all columns, each with what it is of and its name."""
    yield from _columns_of_tables(step)
    arguments = [*chain.from_iterable(call.arguments for call in step.calls), *chain(*step.functions.arguments)]
    for what, rows, names in (
        ("arguments", arguments, ("tensor", "sources", "functions")),
        ("calls", step.calls, ("outputs", "enter_seconds", "exit_seconds")),
        ("the step", [step], ("plain_seconds",)),
        ("units", step.units or (), ("call",)),
        ("the host", [step.host] if step.host is not None else [], ("forward_seconds", "backward_seconds")),
    ):
        yield from ((what, name, [getattr(row, name) for row in rows]) for name in names)
    yield "calls", "attributes", [() if call.attributes is msgspec.UNSET else call.attributes for call in step.calls]
    if step.world is not None:
        yield "the world", "reads", [step.world.gathered, step.world.reduced]
    if step.host is not None:
        yield "the host", "call_seconds", step.host.call_seconds
    if step.copies is not None:
        summed = [tensor for pairs in step.copies.sums.values() for tensor, _ in pairs]
        yield "the copies", "tensor", [*summed, *step.copies.tensors]
    for each in step.refusals:
        yield "refusals", OF_REFUSALS.get(each.what, "function"), [each.index]


def _columns_of_tables(step: StepRecord) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield the columns of tables; those of one table have one length."""
    tables = {"functions": step.functions, "operators": step.ops}
    for what, table in (tables | {"tensors": step.tensors, "saves": step.saves}).items():
        columns = [(what, name, getattr(table, name)) for name in table.__struct_fields__]
        if len({len(column) for *_, column in columns}) != 1:
            raise InvalidFile(f"the columns of {what} differ in length")
        yield from columns


def _check_tree(step: StepRecord) -> None:
    """Check that calls are in pre-order, that each has its parent and its subtree's end, and begins before it ends."""
    calls = step.calls
    for i, call in enumerate(calls):
        parent = i - 1
        while parent >= 0 and calls[parent].stop <= i:
            parent = calls[parent].parent
        end = calls[parent].stop if i else len(calls)
        # The first call, and no other, has no parent.
        if call.parent != parent or not i < call.stop <= end or (i > 0) != (parent >= 0):
            raise InvalidFile(
                f"call {shown(call.key)} at {i} has parent {call.parent} and stop {call.stop}: not a tree"
            )
        if not call.enter_seconds <= call.exit_seconds:
            raise InvalidFile(f"call {shown(call.key)} ends at {call.exit_seconds} s, before it begins")


Spans: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[int]]]
"""What is wrong where ticks do not ascend, with a place for a name; the names by row, if any; the ticks by column."""


def _spans(step: StepRecord) -> Iterator[Spans]:
    """Yield ticks that must ascend from column to column, each with what is wrong if they do not."""
    end = step.ticks
    late = step.forward_ticks, *chain(*step.late_forwards), end
    yield _row("a late forward begins before a backward, or ends after the step", *late)
    yield from _spans_of_calls(step)
    yield from _spans_of_lives(step)
    yield _row("a backward pass begins in forward or after the step", step.forward_ticks, *step.backward_ticks, end)
    if not set(step.nested_ticks) <= set(step.backward_ticks):
        raise InvalidFile("a backward inside another begins at a tick at which no backward does")
    for _, read, freed in step.kept_reads:
        yield _row("a tensor is freed before it is read, or after the step ends", step.forward_ticks, read, freed, end)


def _spans_of_calls(step: StepRecord) -> Iterator[Spans]:
    """Yield those of calls, and of what runs and is made inside them."""
    calls, functions, ops = step.calls, step.functions, step.ops
    opened, closed = [call.enter for call in calls], [call.exit for call in calls]
    # The call of the root goes on through all late forwards.
    late = step.late_forwards
    until = [step.ticks if call.parent < 0 and late else step.forward_until(call.enter) for call in calls]
    yield "call {} runs outside forward", [call.key for call in calls], (opened, closed, until)
    for names, within, starts, stops in (
        (functions.name, functions.call, functions.enter, functions.exit),
        (ops.name, ops.call, ops.start, ops.stop),
    ):
        around = [opened[call] for call in within], starts, stops, [closed[call] for call in within]
        yield "{} runs outside its call", names, around
    made = [(function, tensor) for function, makes in enumerate(functions.makes) for tensor in makes]
    columns = (
        [functions.enter[function] + 1 for function, _ in made],
        [step.tensors.birth[tensor] for _, tensor in made],
        [functions.exit[function] - 1 for function, _ in made],
    )
    makers = [functions.name[function] for function, _ in made]
    yield "function {} makes a tensor that is not born in it", makers, columns


def _spans_of_lives(step: StepRecord) -> Iterator[Spans]:
    """Yield those of tensors and of saves."""
    tensors, saves, end = step.tensors, step.saves, step.ticks
    born, ends = [birth + 1 for birth in tensors.birth], [end] * len(tensors)
    for dies in (tensors.natural, tensors.death):
        yield "a tensor dies before it is born", (), (born, dies, ends)
    ends = [end] * len(saves)
    for late in (saves.unpack, saves.release):
        yield "a tensor is let go of before it is saved", (), (saves.pack, late, ends)
    read = [each for each, unpack in enumerate(saves.unpack) if unpack < end]
    columns = [saves.pack[each] for each in read], [saves.unpack[each] for each in read]
    yield "a tensor is let go of before it is read", (), (*columns, [saves.release[each] - 1 for each in read])
    for save, tick in step.rereads:
        yield _row("a tensor is read again before it is read", saves.unpack[save], tick, saves.release[save])


def _row(what: str, *ticks: int) -> Spans:
    """Return the spans of a single row."""
    return what, (), [(tick,) for tick in ticks]
