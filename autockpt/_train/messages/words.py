"""What a plan recomputes, in words: ``all 48 blocks of h in part; kept: attention, tanh``."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..._choose.index.products import multiplies
from ..._data.plan import Plan, Segment
from ..._data.profile import Profile
from ..._data.text.keys import label, split_key
from .kinds import kinds_in_words, moved_in_words

MOST = 3
"""How many kinds of calls are named; the rest are counted."""

ANY = "*"

PLAIN = frozenset({"add", "mul", "to", "getitem", "contiguous", "clone"})
"""Functions whose names say nothing about a model."""

MOSTLY, SELDOM = 0.5, 0.1
"""Shares of the segments of a kind that are recomputed in part. A unit that at least `MOSTLY` of them keep is named
without a number, one that at least `SELDOM` of them keep with a number, others not at all."""


@dataclass(slots=True)
class _Kind:
    """Calls with the same name in different layers: ``h.*.mlp``.

    Attributes:
        before: the name before the layer number; the whole name if it has no number.
        after: the name after the layer number.
        layers: the layer numbers.
        segments: the segments that recompute these calls, one entry for each call.
    """

    before: str
    after: str
    layers: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)


def in_words(plan: Plan, profile: Profile | None = None) -> Iterator[str]:
    """Yield a phrase for each kind of calls that a plan recomputes; first the kinds that free most.

    Args:
        plan: the plan.
        profile: the profile of the step, so that phrases can say "46 of 48".
    """
    kinds: dict[tuple[str, str], _Kind] = {}
    for segment in plan.segments:
        for call in segment.calls if segment.runs_again else ():
            before, layer, after = _split(call)
            kind = kinds.setdefault((before, after), _Kind(before, after))
            kind.layers += [layer] if layer is not None else []
            kind.segments.append(segment)
    ordered = sorted(kinds.values(), key=lambda kind: -sum(s.freed_bytes for s in kind.segments))
    totals = _totals(profile) if profile is not None else Counter()
    short = shortened([kind.before for kind in ordered])
    for kind in ordered[:MOST]:
        yield _phrase(kind, totals[kind.before, kind.after], short[kind.before])
    if len(ordered) > MOST:
        more = sum(len(kind.segments) for kind in ordered[MOST:])
        yield f"and {more} {'call' if more == 1 else 'calls'} of other kinds"
    yield from kinds_in_words(plan)
    if moved := moved_in_words(plan):
        yield moved if kinds else f"nothing, {moved}"


def phrase(plan: Plan, profile: Profile | None = None) -> str:
    """Return the same in one line. Of several kinds it has only the first two, without what they keep."""
    said, last = list(in_words(plan, profile)), [*kinds_in_words(plan), *filter(None, [moved_in_words(plan)])]
    if len(said) < 2:
        return said[0] if said else "nothing"
    again = said[: len(said) - len(last)]
    first = ", ".join(each.partition("; ")[0] for each in again[:2]) + (" and more" if len(again) > 2 else "")
    return ", ".join([first, *last])


def shortened(names: Iterable[str]) -> dict[str, str]:
    """Shorten each name to the last parts that tell it from the other names."""
    names = list(dict.fromkeys(names))
    found = {}
    for name in names:
        parts = name.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        others = [f".{other}" for other in names if other != name]
        found[name] = next((end for end in ends if not any(each.endswith(f".{end}") for each in others)), name)
    return found


def _phrase(kind: _Kind, total: int, name: str) -> str:
    """Say which calls of a kind run again, and what they keep: ``mlp in 46 of 48 blocks of h whole``.

    A segment that keeps functions of `PLAIN` alone counts as whole: there is no name to give for them.
    """
    number = len(kind.segments)
    kept = [dict.fromkeys(filter(None, map(_unit, segment.keep))) for segment in kind.segments]
    partial = sum(map(bool, kept))
    mixed = f"({number - partial} whole, {partial} in part)"
    how = "whole" if not partial else "in part" if partial == number else mixed
    said = f"{_calls(kind, total, name)} {how}"
    counts = Counter(unit for units in kept for unit in units)
    often = [(unit, n) for unit, n in counts.most_common(MOST) if n >= SELDOM * partial]
    named = [unit if n >= MOSTLY * partial else f"{unit} in {n}" for unit, n in often]
    return f"{said}; kept: {', '.join(named)}" if named else said


def _calls(kind: _Kind, total: int, name: str) -> str:
    """Name the calls of a kind, and how many there are in `total`: ``46 of 48 blocks of h``."""
    number = len(kind.segments)
    of = f"all {number}" if number == total else f"{number} of {total}" if total > number else str(number)
    if not kind.layers:
        return name or "the whole model"
    if not name and kind.after.startswith(ANY):
        inside = kind.after.lstrip(f".{ANY}")
        return f"{f'{inside} in ' if inside else ''}{of} {'part' if number == 1 else 'parts'} of blocks"
    if ANY in kind.after:
        return f"{of} {'.'.join(filter(None, (name, ANY, kind.after)))}"
    blocks = f"{of} {'block' if number == 1 else 'blocks'}" + (f" of {name}" if name else "")
    if number < total and number <= MOST and name:
        blocks = f"{name}.{ranges(sorted(set(kind.layers)))}"
    return f"{kind.after} in {blocks}" if kind.after else blocks


def _split(call: str) -> tuple[str, int | None, str]:
    """Split a call's name at its layer number, the first number in it; further numbers become ``*``.

    Occurrence numbers are dropped: a second call of the same module or function is of the same kind.
    """
    module, function = split_key(call)
    parts = module.partition("#")[0].split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if at is None:
        return label(call), None, ""
    after = [ANY if part.isdigit() else part for part in parts[at + 1 :]]
    return ".".join(parts[:at]), int(parts[at]), ".".join([*after, *filter(None, [function.partition("#")[0]])])


def _unit(key: str) -> str:
    """Name a kept unit: a matrix product by its module, any other function by its own name; empty if it is `PLAIN`."""
    call, function = split_key(key)
    name = call.partition("#")[0].rpartition(".")[2]
    function = function.partition("#")[0]
    if "attention" in function:
        return "attention"
    if not function or multiplies(function):
        return name or function
    return "" if function.strip("_") in PLAIN else function.strip("_")


def _totals(profile: Profile) -> Counter[tuple[str, str]]:
    """Count the calls that have a layer number, by what their names have before and after it: the 48 of "46 of 48"."""
    found: Counter[tuple[str, str]] = Counter()
    for call in profile.calls:
        before, layer, after = _split(call.key)
        if layer is not None:
            found[before, after] += 1
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Return ``3`` for one number, ``{0-3, 7}`` for several."""
    if len(numbers) == 1:
        return str(numbers[0])
    steps = itertools.groupby(enumerate(sorted(numbers)), key=lambda each: each[1] - each[0])  # equal within a run
    runs = [[number for _, number in run] for _, run in steps]
    return "{" + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) + "}"
