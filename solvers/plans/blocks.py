"""The block chain: the row of calls that people would call the model's blocks.

    root ─ transformer ─┬─ wte
                        ├─ h.0 … h.11          the chain: wte, h.0, …, h.11, ln_f, lm_head
                        └─ ln_f
         └ lm_head

Names do not matter. A call is opened, so that its children take its place, as long as too few calls hold the saved
bytes, or one of them holds far more than the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median

from ..problem import Call, Candidate, Problem

MIN_BLOCKS = 4  # a chain of fewer calls that matter leaves nothing to choose from

MAX_OVER_MEDIAN = 2.5
"""A call that holds more than this many times the median of the calls that matter is no block like them: open it.

It is not the mean: an unopened encoder of six blocks beside six decoder blocks would raise that too far."""

MATTERS = 1 / 20  # calls below this share of the largest do not count: a row of dropouts must not open the blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChain:
    """The elements of the block chain, and the candidates that span runs of them.

    Attributes:
        elements: calls in forward order, none inside another; only those that save something or can be recomputed.
        saved_bytes: per element, each storage once.
        spans: candidate for each ``(first call, one past the last call)``; see `widest_candidates`.
        problem: what the chain was made from.
    """

    elements: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    spans: dict[tuple[int, int], int]
    problem: Problem

    def candidate(self, first: int, last: int) -> int | None:
        """Candidate that recomputes elements number `first` to `last`, both included; None if there is none."""
        calls = self.problem.calls
        return self.spans.get((self.elements[first], calls[self.elements[last]].stop))

    def siblings(self, left: int, right: int) -> bool:
        """Whether two elements are calls of the same parent call."""
        calls = self.problem.calls
        return calls[self.elements[left]].parent == calls[self.elements[right]].parent

    def runs(self, longest: int) -> Iterator[int]:
        """Cover the chain, from its start, with candidates of as many elements as exist up to `longest`.

        With `longest` 1 there is one candidate for each element. Elements that no candidate recomputes are left out.
        """
        at = 0
        while at < len(self.elements):
            for last in range(min(at + longest, len(self.elements)) - 1, at - 1, -1):
                candidate = self.candidate(at, last)
                if candidate is not None:
                    yield candidate
                    at = last
                    break
            at += 1

    def joined(self, pieces: Sequence[tuple[int, int]], most_bytes: float) -> tuple[int, ...]:
        """Candidates for pieces (first and last element), which are joined while they save at most `most_bytes`.

        Of a long row not all runs are candidates, so a longer one may exist where a shorter one does not. A segment
        also ends where no candidate goes on: at the end of a group of siblings, or at a refused call.
        """
        before = [0, *accumulate(sum(self.saved_bytes[first : last + 1]) for first, last in pieces)]
        ways = self._ways(pieces)
        segments: list[int] = []
        at = 0
        while at < len(pieces):
            for number, candidate in ways.get(at, ()):  # the longest first
                if number == at or before[number + 1] - before[at] <= most_bytes:
                    segments.append(candidate)
                    at = number
                    break
            at += 1
        return tuple(segments)

    def _ways(self, pieces: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
        """By piece, the pieces at which a candidate from it on can end, the last first, each with the candidate."""
        calls, elements = self.problem.calls, self.elements
        begins = {elements[first]: number for number, (first, _) in enumerate(pieces)}
        ends = {calls[elements[last]].stop: number for number, (_, last) in enumerate(pieces)}
        group = [0]
        for (first, _), (_, last) in pairwise(pieces):
            group.append(group[-1] + (not self.siblings(first, last)))
        ways: dict[int, list[tuple[int, int]]] = {}
        for (start, stop), candidate in self.spans.items():
            at, number = begins.get(start, -1), ends.get(stop, -1)
            if 0 <= at <= number and group[at] == group[number]:
                ways.setdefault(at, []).append((number, candidate))
        return {at: sorted(found, reverse=True) for at, found in ways.items()}

    def first(self, number: int) -> BlockChain:
        """The first elements of the chain, as a chain."""
        return replace(self, elements=self.elements[:number], saved_bytes=self.saved_bytes[:number])


def microbatches(problem: Problem) -> list[int]:
    """For each call, the number of its microbatch; 0 for all calls of a step that has one.

    Of several microbatches each calls all modules that the root calls, equally often. Occurrences tell them apart.
    """
    times = Counter(_name(call) for call in problem.calls)
    several = math.gcd(*(times[_name(call)] for call in problem.calls if call.parent == 0 and not call.function)) or 1
    before: Counter[str] = Counter()
    found = [0] * len(problem.calls)
    for i, call in enumerate(problem.calls):
        name = _name(call)
        found[i] = before[name] * several // times[name]
        before[name] += 1
    return found


def layers(calls: Sequence[Call]) -> Iterator[int]:
    """Yield the layers, which are what people count: calls of modules in a list, which make calls and lie in no other.

    Libraries wrap these where their switch is on.
    """
    makes_calls = {call.parent for call in calls if not call.function}
    stop = 0
    for i, call in enumerate(calls):
        if i >= stop and i in makes_calls and not call.function and _name(call).rpartition(".")[2].isdecimal():
            stop = call.stop
            yield i


def layer_chains(problem: Problem) -> list[BlockChain]:
    """Find the rows of layers, a chain for each.

    Layers that the same call makes in the same microbatch are one row. Where there are none, the block chain is the
    only row.

    O(calls).
    """
    number = microbatches(problem)
    rows: dict[tuple[int, int], list[int]] = {}
    for i in layers(problem.calls):
        rows.setdefault((problem.calls[i].parent, number[i]), []).append(i)
    if not rows:
        return [block_chain(problem)]
    spans, saved = widest_candidates(problem), _saved_bytes(problem)
    return [
        BlockChain(elements=tuple(row), saved_bytes=tuple(saved[i] for i in row), spans=spans, problem=problem)
        for row in rows.values()
    ]


def _name(call: Call) -> str:
    """The name of a call without its occurrence."""
    return call.name if call.function else call.name.partition("#")[0]


def block_chain(problem: Problem) -> BlockChain:
    """Find the block chain; without elements where no candidate exists.

    Starts with the children of the root, without functions. The largest call that can be opened is opened while fewer
    than `MIN_BLOCKS` calls matter, while it holds more than `MAX_OVER_MEDIAN` times their median, or where it cannot
    be recomputed but something inside can. A call matters if it saves at least `MATTERS` of what the largest saves.
    Calls as large as the one opened are opened with it, so that equal blocks stay equal.

    Heuristic; O(calls² + saves × depth).
    """
    spans = widest_candidates(problem)
    single = [(i, call.stop) in spans for i, call in enumerate(problem.calls)]
    children: list[list[int]] = [[] for _ in problem.calls]
    inside = [0] * len(problem.calls)  # calls strictly inside that can be recomputed
    for i in range(len(problem.calls) - 1, 0, -1):
        parent = problem.calls[i].parent
        if parent >= 0 and not problem.calls[i].function:
            children[parent].append(i)
            inside[parent] += inside[i] + single[i]
    saved = _saved_bytes(problem)

    elements = [i for i, call in enumerate(problem.calls) if call.parent < 0]
    while True:
        open_now = _to_open(elements, saved, single, inside) if len(elements) > 0 else []
        if not open_now:
            break
        elements = sorted({c for e in elements for c in (children[e] if e in open_now else [e])})
    kept = tuple(e for e in elements if saved[e] or single[e])
    return BlockChain(elements=kept, saved_bytes=tuple(saved[e] for e in kept), spans=spans, problem=problem)


def widest_candidates(problem: Problem) -> dict[tuple[int, int], int]:
    """Candidate for each ``(first call, one past the last call)``; of several, the one that recomputes most."""
    spans: dict[tuple[int, int], int] = {}
    for i, candidate in enumerate(problem.candidates):
        span = (candidate.start, candidate.stop)
        if span not in spans or _width(candidate) > _width(problem.candidates[spans[span]]):
            spans[span] = i
    return spans


def _width(candidate: Candidate) -> tuple[bool, float]:
    return not candidate.partial, candidate.recompute_seconds


def _saved_bytes(problem: Problem) -> list[int]:
    """Bytes of the tensors saved in each call's subtree, each storage once."""
    saved = [0] * len(problem.calls)
    for tensor in problem.tensors:
        if tensor.demand:
            continue
        holders: set[int] = set()
        for save in tensor.saves:
            call = save.call
            while call >= 0 and call not in holders:
                holders.add(call)
                call = problem.calls[call].parent
        for call in holders:
            saved[call] += tensor.bytes
    return saved


def _to_open(elements: Sequence[int], saved: Sequence[int], single: Sequence[bool], inside: Sequence[int]) -> list[int]:
    """Elements to replace by their children now; empty when the chain is done."""
    closed = [e for e in elements if inside[e]]
    if not closed:
        return []
    largest = max(saved[e] for e in closed)
    matter = [saved[e] for e in elements if saved[e] and saved[e] >= MATTERS * max(saved[e] for e in elements)]
    if len(matter) < MIN_BLOCKS or largest > MAX_OVER_MEDIAN * median(matter):
        return [e for e in closed if saved[e] == largest]
    return [e for e in closed if not single[e]]
