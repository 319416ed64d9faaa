"""Operators of the structural forward, named by the tensors of the recorded step.

Both forwards pass the same places (calls, functions, saves), and what a place names in one is what it names in the
other. What stays inside a function is matched with the function's births by order and size.

    recorded     begin linear · t7 │ birth t8 (96 bytes)      │ pack t8 │ end · t8
    structural   begin linear · s3 │ op addmm: s3 ─▶ s4 (96)  │ pack s4 │ end · s4      so s3 is t7, and s4 is t8
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from .._data.tables import OpTable
from .assemble import Lifetimes, WatchedRun, rounded
from .dataflow import DataFlow, SeenOp, Storage
from .functions import PLACES, StepFunction
from .watch import Clock

SLACK_BYTES = 2**20
"""By how much what an allocator hands out may exceed what it was asked for, on devices."""


@dataclass(slots=True)
class OpRow:
    """A row of the table of operators; `seen` are the operators of the structural forward that it stands for."""

    function: int
    call: int
    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    writes: tuple[int, ...] = ()
    seconds: float = 0.0
    seen: list[int] = field(default_factory=list)


class Operators:
    """The operators of a recorded step.

    Args:
        run: the step.
        found: its lifetimes.
        functions: its functions.
        flow: what the structural forward saw, if it passed the same places.
        clock: made the readings of its operators.
        exact: whether the allocator hands out as many bytes as it is asked for.

    Attributes:
        rows: in order.
    """

    def __init__(
        self,
        run: WatchedRun,
        found: Lifetimes,
        functions: list[StepFunction],
        flow: DataFlow | None,
        clock: Clock,
        *,
        exact: bool,
    ) -> None:
        self.rows: list[OpRow] = []
        self._found, self._functions, self._flow = found, functions, flow
        self._slack = 0 if exact else SLACK_BYTES
        self._tensor_of: dict[Storage, int] = {}
        if flow is None:
            self.rows = [self._whole(number) for number, each in enumerate(functions) if each.makes or each.packs]
            for row in self.rows:
                row.seconds = functions[row.function].seconds
            return
        self._name_storages(run, flow)
        self._add_rows(flow)
        self._share_seconds(flow, clock)

    def table(self) -> OpTable:
        """Make the table."""
        return OpTable(
            function=tuple(row.function for row in self.rows),
            call=tuple(row.call for row in self.rows),
            name=tuple(row.name for row in self.rows),
            seconds=tuple(rounded(row.seconds) for row in self.rows),
            reads=tuple(row.reads for row in self.rows),
            makes=tuple(row.makes for row in self.rows),
            writes=tuple(row.writes for row in self.rows),
        )

    def reads_of(self, function: int) -> tuple[int, ...]:
        """Tensors that a function read; its arguments, and whatever it got at by other ways."""
        reads = dict.fromkeys(self._functions[function].given)
        if self._flow is not None:
            seen = self._flow.functions[function]
            if seen.shapes_only:
                return ()
            for number in seen.ops:
                # What it made itself there may be older in the step (autocast's cached casts): a replay makes it too.
                older = [storage for storage in self._flow.ops[number].reads if storage[1] < seen.first_op]
                reads.update(dict.fromkeys(self._named(older)))
        step = self._functions[function]
        return tuple(t for t in reads if t >= 0 and self._found.birth[t] < step.enter)

    def of_saves(self, functions: list[int]) -> list[int]:
        """For each save, given the function that made it, the operator that made it; -1 if that is not known."""
        row_of = {number: i for i, row in enumerate(self.rows) for number in row.seen}
        alone = {row.function: i for i, row in enumerate(self.rows) if row.function >= 0 and not row.seen}
        if self._flow is None:
            return [alone.get(function, -1) for function in functions]
        packs = [happening for happening in self._flow.happenings if happening.kind == "pack"]
        found = []
        for function, pack in zip(functions, packs, strict=True):
            ops = self._flow.functions[function].ops if function >= 0 else []
            # An autograd node is made, saves inputs, runs its operator, and saves outputs.
            own = [number for number in ops if self._flow.ops[number].node == pack.node]
            before = [number for number in ops if number < pack.n_ops]
            number = own[0] if own else before[-1] if before else -1
            found.append(row_of.get(number, -1))
        return found

    def _name_storages(self, run: WatchedRun, flow: DataFlow) -> None:
        places = [i for i, mark in enumerate(run.marks) if mark.kind in PLACES]
        for place, happening in zip(places, flow.happenings, strict=True):
            tensors = self._found.mark_tensors[place]
            if len(tensors) == len(happening.storages):
                self._tensor_of.update(zip(happening.storages, tensors, strict=True))

    def _add_rows(self, flow: DataFlow) -> None:
        done: set[int] = set()
        for number, op in enumerate(flow.ops):
            if op.function < 0:
                self.rows.append(self._row(number, op))
            elif op.function not in done:
                done.add(op.function)
                own = flow.functions[op.function].ops
                if self._match([flow.ops[each] for each in own], self._functions[op.function]):
                    self.rows.extend(self._row(each, flow.ops[each]) for each in own)
                else:
                    self.rows.append(self._whole(op.function, own))

    def _match(self, ops: list[SeenOp], function: StepFunction) -> bool:
        """Name what a function's operators make; False where that cannot be done."""
        birth, size_of = self._found.birth, self._found.bytes
        first, stop = (bisect.bisect_right(birth, tick) for tick in (function.enter, function.exit))
        known = {self._tensor_of[storage] for op in ops for storage, _ in op.makes if storage in self._tensor_of}
        begin = first
        for position, op in enumerate(ops):
            last = first - 1
            for storage, size in op.makes:
                if storage not in self._tensor_of:
                    fitting = (t for t in range(first, stop) if size <= size_of[t] <= size + self._slack)
                    tensor = next((t for t in fitting if t not in known), None)
                    if tensor is None:
                        tensor = self._overwritten(op, size, ops[position + 1 :])
                    if tensor is None:
                        return False
                    self._tensor_of[storage] = tensor
                    known.add(tensor)
                if not begin <= self._tensor_of[storage] < stop:
                    return False
                last = max(last, self._tensor_of[storage])
            first = max(first, last + 1)  # the next operator's births come later
        return True

    def _overwritten(self, op: SeenOp, size: int, later: list[SeenOp]) -> int | None:
        """The tensor that an operator overwrites in the recorded step, where under a dispatch mode it makes a new one.

        Attention adds its mask so.
        """
        needed = {storage for other in later for storage in other.reads}
        for storage in op.reads:
            tensor = self._tensor_of.get(storage, -1)
            if tensor >= 0 and storage not in needed and self._found.bytes[tensor] == size:
                return tensor
        return None

    def _row(self, number: int, op: SeenOp) -> OpRow:
        reads, made = self._named(op.reads), self._named(storage for storage, _ in op.makes)
        writes = (*self._named(op.writes), *(tensor for tensor in made if tensor in reads))
        makes = tuple(tensor for tensor in made if tensor not in reads)
        return OpRow(op.function, op.call, op.name, reads, makes, writes, seen=[number])

    def _whole(self, function: int, seen: Iterable[int] = ()) -> OpRow:
        """A function whose operators cannot be told apart."""
        step = self._functions[function]
        return OpRow(function, step.call, step.name, self.reads_of(function), step.makes, seen=list(seen))

    def _named(self, storages: Iterable[Storage]) -> tuple[int, ...]:
        """The tensors of the recorded step that these storages are; older ones left out."""
        tensors = dict.fromkeys(self._tensor_of.get(storage, -1) for storage in storages)
        return tuple(tensor for tensor in tensors if tensor >= 0)

    def _share_seconds(self, flow: DataFlow, clock: Clock) -> None:
        """Split each function's seconds as the operators' own seconds say, medians over equal functions."""
        readings = clock.seconds([stamp for op in flow.ops for stamp in (op.start, op.stop)]) if flow.ops else []
        own = [max(stop - start, 0.0) for start, stop in zip(readings[::2], readings[1::2], strict=True)]
        rows_of: dict[int, list[OpRow]] = defaultdict(list)
        groups: dict[tuple[object, ...], list[list[float]]] = defaultdict(list)
        for row in self.rows:
            row.seconds = sum(own[number] for number in row.seen)
            rows_of[row.function].append(row)
        rows_of.pop(-1, None)  # what no function ran was timed nowhere else
        keys = {
            number: (self._functions[number].group, *(row.name for row in rows)) for number, rows in rows_of.items()
        }
        for number, rows in rows_of.items():
            groups[keys[number]].append([row.seconds for row in rows])
        for number, rows in rows_of.items():
            shares = [statistics.median(column) for column in zip(*groups[keys[number]], strict=True)]
            total = sum(shares)
            for row, share in zip(rows, shares, strict=True):
                part = share / total if total > 0 else 1 / len(rows)
                row.seconds = self._functions[number].seconds * part
