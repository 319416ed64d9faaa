"""A profile laid out for looking things up."""

from __future__ import annotations

import bisect
import functools
import statistics
from collections import Counter, defaultdict

import numpy as np
import numpy.typing as npt

from ..._data.devices import host_costs
from ..._data.profile import Profile
from .glue import is_glue

CASTS = "aten._to_copy."
"""How the name begins of the operator that casts."""

Ints = npt.NDArray[np.int64]


class Book:
    """A profile laid out for looking things up.

    Attributes:
        profile: the profile.
        host: what recomputing costs the host.
        refused: why calls cannot be replayed, by index.
        refused_results: why results of functions cannot be handed out by a replay, by index.
        children: the calls that each call makes.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.host = host_costs(profile.device)
        self.refused = profile.refused("call")
        self.refused_results = profile.refused("result")
        self.children: list[list[int]] = [[] for _ in profile.calls]
        for index, call in enumerate(profile.calls):
            if call.parent >= 0:
                self.children[call.parent].append(index)
        tensors, saves = profile.tensors, profile.saves
        self.bytes, self.birth, self.natural = (
            np.array(c, np.int64) for c in (tensors.bytes, tensors.birth, tensors.natural)
        )
        self.call_at = _innermost_calls(profile)
        in_forward = self.birth < profile.forward_ticks
        self.birth_call = np.where(in_forward, self.call_at[np.minimum(self.birth, profile.forward_ticks - 1)], -1)
        self.birth_function = _functions_at(profile, self.birth)
        callers = (
            profile.calls[call].parent if is_glue(profile.calls[call]) else call for call in profile.functions.call
        )
        self._own_functions = Counter(callers)
        # Saves by call, so that those of a subtree are one slice.
        self._order = sorted(range(len(saves)), key=lambda i: saves.call[i])
        self._save_calls = [saves.call[i] for i in self._order]
        by_signature: dict[str, list[float]] = defaultdict(list)
        for call in profile.calls:
            by_signature[call.signature].append(call.forward_seconds)
        self._median = {signature: statistics.median(times) for signature, times in by_signature.items()}
        self._partial = self._partial_seconds()

    @functools.cached_property
    def writers(self) -> dict[int, tuple[int, ...]]:
        """By tensor that is changed in place, the calls whose operators do so; what it was born in is none of them."""
        ops = self.profile.ops
        found: dict[int, list[int]] = {}
        for f, call, written in zip(ops.function, ops.call, ops.writes, strict=True):
            for tensor in written:
                if f < 0 or self.birth_function[tensor] != f:
                    found.setdefault(tensor, []).append(call)
        return {tensor: tuple(callers) for tensor, callers in found.items()}

    def changed_outside(self, members: tuple[int, ...]) -> set[int]:
        """Tensors that calls outside a run change in place."""
        start, stop = members[0], self.profile.calls[members[-1]].stop
        return {tensor for tensor, callers in self.writers.items() if any(not start <= call < stop for call in callers)}

    def fates(self, members: tuple[int, ...]) -> frozenset[tuple[int, int]]:
        """Which results of a run's functions are changed outside it: row of the function, and number of the result.

        Calls of one signature may differ in this, which is their caller's doing.
        """
        changed, makes = self.changed_outside(members), self.profile.functions.makes
        if not changed:
            return frozenset()
        return frozenset(
            (row, number)
            for row, f in enumerate(self.functions_of_run(members))
            for number, tensor in enumerate(makes[f])
            if tensor in changed
        )

    @functools.cached_property
    def casts(self) -> frozenset[int]:
        """Tensors that are casts of what is older than the step, such as those of weights under autocast."""
        ops = self.profile.ops
        casts = (i for i, name in enumerate(ops.name) if name.startswith(CASTS) and not ops.reads[i])
        return frozenset(tensor for i in casts for tensor in ops.makes[i])

    def saves_in(self, call: int) -> list[int]:
        """Saves made inside a call, children included."""
        return self.saves_of(call, self.profile.calls[call].stop)

    def saves_of(self, start: int, stop: int) -> list[int]:
        """Saves made by the calls ``[start, stop)``."""
        return self._order[bisect.bisect_left(self._save_calls, start) : bisect.bisect_left(self._save_calls, stop)]

    def seen(self, call: int) -> int:
        """How many a function mode meets in a call's own code: itself, torch functions, glue included, and children."""
        children = sum(not is_glue(self.profile.calls[child]) for child in self.children[call])
        return 1 + self._own_functions[call] + children

    def caller(self, function: int, members: tuple[int, ...]) -> int:
        """Call of a run whose own code calls a torch function; where that is glue the caller's, if it is in the run."""
        call = self.profile.functions.call[function]
        record = self.profile.calls[call]
        return record.parent if is_glue(record) and record.parent >= members[0] else call

    def functions_of(self, call: int) -> range:
        """Torch functions called inside a call, children included: one stretch, since they are in order of time."""
        enter = self.profile.functions.enter
        record = self.profile.calls[call]
        return range(bisect.bisect_left(enter, record.enter), bisect.bisect_left(enter, record.exit))

    def functions_of_run(self, members: tuple[int, ...]) -> list[int]:
        """Torch functions called inside a run, those left out that the caller's own code calls in between."""
        first, last = self.profile.calls[members[0]], self.profile.calls[members[-1]]
        functions = self.profile.functions
        low, high = (bisect.bisect_left(functions.enter, tick) for tick in (first.enter, last.exit))
        return [f for f in range(low, high) if members[0] <= functions.call[f] < last.stop]

    def reason(self, members: tuple[int, ...]) -> str:
        """Why a run cannot be replayed exactly; empty where it can."""
        calls = self.profile.calls
        for member in members:
            if member in self.refused:
                return self.refused[member]
            for argument in calls[member].arguments:
                if argument.mutated and not self.inside(argument.sources, members):
                    return "one of its arguments is changed in place later"
        return ""

    def bearer(self, save: int, members: tuple[int, ...]) -> int:
        """The member of a run inside which a save was made."""
        return members[bisect.bisect_right(members, self.profile.saves.call[save]) - 1]

    @staticmethod
    def inside(sources: tuple[int, ...], members: tuple[int, ...]) -> bool:
        """Whether one of the run's own members returned the argument."""
        return any(source in members for source in sources)

    def boundary(self, members: tuple[int, ...]) -> dict[int, None]:
        """Tensors that come into the run from outside, the caller's own code between its calls included."""
        return dict.fromkeys(
            argument.tensor
            for member in members
            for argument in self.profile.calls[member].arguments
            if argument.tensor >= 0 and not self.inside(argument.sources, members)
        )

    def begins(self, function: int, tick: int) -> bool:
        """Whether a torch function does anything before a tick.

        Operators save their arguments before they run, and their results after: what has borne nothing yet, and writes
        into nothing else, has not run.
        """
        functions = self.profile.functions
        if not functions.enter[function] < tick < functions.exit[function]:
            return functions.enter[function] < tick
        bears = np.searchsorted(self.birth, functions.enter[function]) < np.searchsorted(self.birth, tick)
        return bool(bears) or functions.alias[function] or functions.mutates[function]

    def seconds(self, members: tuple[int, ...], last: int) -> float:
        """Forward seconds of the members up to the last save that backward needs."""
        calls, saves = self.profile.calls, self.profile.saves
        seconds = 0.0
        for member in members:
            if calls[member].exit > saves.pack[last]:
                if is_glue(calls[member]):
                    runs = self.begins(self.functions_of(member).start, saves.pack[last])
                    return seconds + (self._median[calls[member].signature] if runs else 0.0)
                return seconds + self._partial.get((member, last), saves.seconds[last] - calls[member].enter_seconds)
            seconds += self._median[calls[member].signature]
        return seconds

    def _partial_seconds(self) -> dict[tuple[int, int], float]:
        """Median over identical calls of the time from a call's begin to the last save inside it."""
        calls, saves = self.profile.calls, self.profile.saves
        groups: dict[tuple[str, int], list[tuple[int, int, float]]] = defaultdict(list)
        for call in range(len(calls)):
            inside = self.saves_in(call)
            if inside:
                last = max(inside, key=lambda i: saves.pack[i])
                elapsed = max(saves.seconds[last] - calls[call].enter_seconds, 0.0)
                groups[calls[call].signature, len(inside)].append((call, last, elapsed))
        medians = [(group, statistics.median(elapsed for _, _, elapsed in group)) for group in groups.values()]
        return {(call, last): median for group, median in medians for call, last, _ in group}


def _innermost_calls(profile: Profile) -> Ints:
    """For each tick of forward, the innermost call that was open."""
    innermost = np.zeros(max(profile.forward_ticks, 1), np.int64)
    for index, call in enumerate(profile.calls):  # pre-order: children write over their parents
        innermost[call.enter : call.exit] = index
    return innermost


def _functions_at(profile: Profile, birth: Ints) -> Ints:
    """For each birth, the torch function in which it happened, -1 if in none; functions do not overlap."""
    functions = profile.functions
    if not len(functions):
        return np.full(len(birth), -1)
    enter, leave = np.array(functions.enter, np.int64), np.array(functions.exit, np.int64)
    last = np.searchsorted(enter, birth, side="right") - 1
    return np.where((last >= 0) & (birth < leave[last]), last, -1)
