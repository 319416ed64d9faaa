"""Which storages the calls, functions and operators of a step read, make and change.

Storages are numbered as in `Lifetimes`: those of the step from 0 on. A negative one is older than the step, or on a
device whose allocations are not recorded. A tensor is *inside* a call that began before the tensor was allocated. For
every other call it comes from outside.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ..watch.marks import Found, SeenStep
from ..watch.routing import CASTS, MOVES_STATISTICS
from .lifetimes import Lifetimes, Placed

LIFTS = "aten.lift_fresh."
"""Prefix of the name of the operator to which ``torch.tensor`` gives its new tensor."""


@dataclass(frozen=True, slots=True)
class Span:
    """A call, a function or an operator, from its first marker to its last."""

    first: Placed
    last: Placed


class Flow:
    """The data flow of one run.

    Args:
        run: the run.
        found: its lifetimes.

    Attributes:
        calls: the span of each call. Its markers have the storages of the arguments and of the outputs.
        functions: the same for functions.
        ops: the same for operators.
        parameters: storages of parameters, also of those that are gathered for a part of the step.
        buffers: storages of buffers.
        casts: storages of autocast's cached casts of parameters.
        constants: storages that the model's own objects refer to, and that no operator of the step changes.
        found: by call, the tensors at attributes of its modules as it begins, each with its storage.
    """

    def __init__(self, run: SeenStep, found: Lifetimes) -> None:
        self.run, self._birth = run, found.birth
        self._saved = [each.storages for each in found.of_kind("pack")]
        self.calls = _spans(found, "enter", "exit", len(run.calls))
        self.functions = _spans(found, "begin", "end", len(run.functions))
        self.ops = _spans(found, "start", "stop", len(run.ops))
        names = found.older
        self.buffers = {number for number, key in names.items() if key in run.buffer_names}
        self.parameters = {number for number, key in names.items() if key in run.parameters}
        self.parameters.update(each for mark in found.of_kind("gathered") for each in mark.storages)
        self._names = {number: run.buffer_names[names[number]] for number in self.buffers}
        # `x.fill_(0.5)` makes a tensor of the number 0.5: an operator reads it, but it is not visible in Python.
        seen = found.of_kind("enter", "exit", "begin", "end", "pack")
        self._visible = {storage for each in seen for storage in each.storages}
        self._visible.update(made for op in range(len(self.ops)) for made in self.makes(op))
        self.casts = self._cached_casts()
        self.constants = {number for number, key in names.items() if key in run.constants} - self.writes_of.keys()
        self.found: list[list[tuple[Found, int]]] = [[] for _ in run.calls]
        for each in found.of_kind("found"):
            self.found[each.mark.index] = [*zip(run.calls[each.mark.index].found, each.storages, strict=True)]
        self._op_ticks = [span.first.tick for span in self.ops]

    def is_own(self, storage: int) -> bool:
        """Whether a storage is the model's: of a parameter, or of a buffer."""
        return storage in self.parameters or storage in self.buffers

    def is_activation(self, storage: int) -> bool:
        """Whether a storage was allocated in the step, and is not a gathered parameter."""
        return storage >= 0 and storage not in self.parameters

    def birth_of(self, storage: int) -> int:
        """Tick at which a storage was allocated; -1 if that was before the step."""
        return self._birth[storage] if storage >= 0 else -1

    def ops_in(self, span: Span) -> range:
        """The operators that ran in a span."""
        low, high = (bisect_left(self._op_ticks, each.tick) for each in (span.first, span.last))
        return range(low, high)

    def reads(self, op: int) -> list[int]:
        """Tensors of the step that an operator reads; without casts that autocast had cached before its function."""
        span, function = self.ops[op], self.run.ops[op].function
        since = self.functions[function].first.tick if function >= 0 else span.first.tick
        read = (each for each in span.first.storages if each in self._visible and self.is_activation(each))
        return [each for each in read if each not in self.casts or self._birth[each] > since]

    def makes(self, op: int) -> list[int]:
        """Tensors that an operator allocates and returns."""
        span = self.ops[op]
        return [each for each in span.last.storages if self.birth_of(each) > span.first.tick]

    def changed(self, op: int) -> list[int]:
        """Storages that an operator changes in place."""
        return [self.ops[op].first.storages[position] for position in self.run.ops[op].written]

    def is_view(self, op: int) -> bool:
        """Whether an operator returns only views of what it is given, and changes nothing."""
        seen, span = self.run.ops[op], self.ops[op]
        return seen.returns and not seen.written and set(span.last.storages) <= set(span.first.storages)

    @cached_property
    def writes_of(self) -> dict[int, list[int]]:
        """The operators that change each storage, in order."""
        found: dict[int, list[int]] = defaultdict(list)
        for op in range(len(self.ops)):
            for storage in self.changed(op):
                found[storage].append(op)
        return found

    def written(self, storages: Iterable[int], ops: range) -> bool:
        """Whether any of these operators changes one of these storages."""
        found = ((own, bisect_left(own, ops.start)) for storage in storages if (own := self.writes_of.get(storage)))
        return any(first < len(own) and own[first] < ops.stop for own, first in found)

    def buffer_names(self, storages: Iterable[int], module: str) -> list[str]:
        """Qualified names of the buffers that have these storages and are inside a module."""
        prefix = f"{module}." if module else ""
        return sorted({name for each in storages for name in self._names.get(each, ()) if name.startswith(prefix)})

    def captured(self) -> set[int]:
        """The calls that read a tensor from outside which a replay would not find.

        A replay finds arguments, parameters and their cached casts, buffers, constants, and state at attributes.
        """
        captured: set[int] = set()
        arguments = [
            {*span.first.storages, *(storage for each, storage in found if self._is_state(each, storage))}
            for span, found in zip(self.calls, self.found, strict=True)
        ]
        for seen, span in zip(self.run.ops, self.ops, strict=True):
            for storage in span.first.storages:
                if self.is_own(storage) or storage in self.casts or storage in self.constants:
                    continue
                call, born = seen.call, self._born_before(storage, span.first.tick)
                while call >= 0 and born < self.calls[call].first.tick:
                    if storage not in arguments[call]:
                        captured.add(call)
                    call = self.run.calls[call].parent
        return captured

    def written_late(self) -> set[int]:
        """The calls whose replay would end before an uncounted write to what they saved.

        A call that saves the storage once more, as backward reads it, is not among them: a replay runs up to there.
        """
        found: set[int] = set()
        for save in self.run.written_late:
            again = range(save + 1, len(self._saved))
            settled = [
                self.run.saves[each].call
                for each in again
                if self._saved[each] == self._saved[save] and each not in self.run.written_late
            ]
            call = self.run.saves[save].call
            while call >= 0:
                inside = range(call, self.run.calls[call].stop)
                if not any(each in inside for each in settled):
                    found.add(call)
                call = self.run.calls[call].parent
        return found

    def _is_state(self, found: Found, storage: int) -> bool:
        """Whether a replay can use what forward found at an attribute: it has no graph, and no operator changes it."""
        return not found.graph and storage not in self.writes_of

    def _born_before(self, storage: int, tick: int) -> int:
        """Tick at which a storage was allocated. If the tape does not see its device: when an operator last made it."""
        made = self._made_elsewhere.get(storage, [])
        newest = bisect_right(made, tick)
        return made[newest - 1] if newest else self.birth_of(storage)

    @cached_property
    def _made_elsewhere(self) -> dict[int, list[int]]:
        """By storage, the ticks at which operators returned it without being given it.

        Only of storages whose allocations are not recorded, such as those of CPU tensors in a step on a GPU. A storage
        has several ticks where its memory was freed and allocated again.
        """
        found: dict[int, list[int]] = defaultdict(list)
        for seen, span in zip(self.run.ops, self.ops, strict=True):
            given = set() if seen.name.startswith(LIFTS) else set(span.first.storages)
            for storage in {*span.first.storages, *span.last.storages} - given:
                if storage < 0:
                    found[storage].append(span.first.tick)
        return found

    @cached_property
    def ops_of(self) -> dict[int, list[int]]:
        """The operators that each function ran."""
        found: dict[int, list[int]] = defaultdict(list)
        for op, seen in enumerate(self.run.ops):
            found[seen.function].append(op)
        return found

    def aliases(self, span: Span) -> bool:
        """Whether a span's outputs share storage with its inputs."""
        return not set(span.last.storages).isdisjoint(span.first.storages)

    def mutates(self, function: int) -> bool:
        """Whether a function changes a storage older than itself.

        A buffer that only this function is given is excepted, if an operator of batch norm changes it, or if outputs of
        the function share storage with its inputs.
        """
        span = self.functions[function]
        for op in self.ops_of[function]:
            for storage in self.changed(op):
                counted = not self.run.ops[op].name.startswith(MOVES_STATISTICS) and not self.aliases(span)
                mine = self.buffer_users.get(storage) == [function] and not counted
                if self.birth_of(storage) < span.first.tick and not mine:
                    return True
        return False

    def draws_fakes(self, function: int) -> bool:
        """Whether a function draws random numbers as fake tensors, so that no generator advances."""
        return any(self.run.ops[op].draws for op in self.ops_of[function])

    def looks_at_shapes(self, function: int) -> bool:
        """Whether a function looks only at shapes."""
        seen, made = self.run.functions[function], self.functions[function].last.storages
        return not self.ops_of[function] and not made and seen.name != "tolist" and seen.plain

    @cached_property
    def buffer_users(self) -> dict[int, list[int]]:
        """The functions that are given each buffer, in order."""
        found: dict[int, list[int]] = defaultdict(list)
        for function, span in enumerate(self.functions):
            for storage in span.first.storages:
                if storage in self.buffers:
                    found[storage].append(function)
        return found

    def signatures(self) -> list[str]:
        """Return a signature for each call; calls that run the same operators on the same shapes have the same one."""
        inside: list[list[tuple[int, str]]] = [[] for _ in self.calls]
        for seen, span in zip(self.run.ops, self.ops, strict=True):
            if seen.call >= 0:
                inside[seen.call].append((span.first.tick, seen.words))
        found = [""] * len(self.calls)
        for call in reversed(range(len(self.calls))):  # children before parents
            seen_call = self.run.calls[call]
            digest = hashlib.sha1(seen_call.shapes.encode(), usedforsecurity=False)
            for _, words in sorted(inside[call]):
                digest.update(words.encode())
            found[call] = digest.hexdigest()[:16]
            if seen_call.parent >= 0:
                inside[seen_call.parent].append((self.calls[call].first.tick, found[call]))
        return found

    def _cached_casts(self) -> frozenset[int]:
        """Storages of casts of parameters that autocast caches and returns again. They count as the parameter.

        Some are older than the step: of a forward before it, in the same region.
        """
        found: set[int] = set()
        for op, seen in enumerate(self.run.ops):
            if seen.function < 0:
                continue
            function, span, given = self.run.functions[seen.function], self.functions[seen.function], self.ops[op].first
            found.update(given.storages[each] for each in seen.casts)
            if seen.name.startswith(CASTS) and function.cached_casts and self.parameters.issuperset(given.storages):
                found.update(set(self.makes(op)).difference(span.last.storages))
        return frozenset(found)


def _spans(found: Lifetimes, first: str, last: str, count: int) -> list[Span]:
    begins: list[Placed | None] = [None] * count
    ends: list[Placed | None] = [None] * count
    for each in found.marks:
        if each.mark.kind == first:
            begins[each.mark.index] = each
        elif each.mark.kind == last:
            ends[each.mark.index] = each
    return [Span(one, other) for one, other in zip(begins, ends, strict=True) if one is not None and other is not None]
