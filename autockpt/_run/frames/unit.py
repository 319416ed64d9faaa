"""Units: calls inside a member that its replay does not run again, because they are kept or skipped.

    forward   norm ─▶ [up] ─▶ gelu ─▶ [down] ─▶ +        [up] kept: its result stays
    replay    norm    stays ─▶ gelu   hollow              [down] skipped: nothing needed reads its result
               └────────▶ what [up] saved of its argument

Units run in the same order in forward and in the replay. So each call in forward adds an entry: a unit that ran, or the
key of any other call. Each call in the replay takes the next entry. What a unit saves stays with autograd, as in a
plain step. Its own arguments do not: the replay makes them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from ..._calls.found.held import Detached, Tags, tagged, tags_of
from ..._calls.found.hollow import Shape
from ..._calls.values import decode


@dataclass(frozen=True, slots=True)
class Wanted:
    """Functions of one call's own code that are members or units.

    Attributes:
        keys: their keys, by name and occurrence.
        count: how many there are.
        only: the key of the wanted function, if there is one and it is the first of its name; else None.
    """

    keys: Mapping[str, Mapping[int, str]]
    count: int
    only: str | None

    @classmethod
    def of(cls, call: str, functions: Collection[str]) -> Wanted:
        """Return them for the key of a call and functions as ``name#occurrence``."""
        keys: dict[str, dict[int, str]] = {}
        for function in functions:
            name, _, occurrence = function.partition("#")
            keys.setdefault(name, {})[int(occurrence)] = f"{call}/{function}"
        only = next(iter(keys.values())).get(0) if len(functions) == 1 else None
        return cls(keys, len(functions), only)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUnits:
    """The units of a plan.

    Attributes:
        kept: by key of a unit, whether its result is kept; otherwise it is skipped.
        functions: by the key of a call, the functions of its own code that are members or units.
        inside: names of the modules that have units among their calls, or among the functions of their code.
    """

    kept: Mapping[str, bool] = field(default_factory=dict)
    functions: Mapping[str, Wanted] = field(default_factory=dict)
    inside: Collection[str] = frozenset()


class PassedOn(NamedTuple):
    """A tensor of a unit's result that is one of its arguments: the argument's number, and its Python attributes."""

    number: int
    tags: Tags


@dataclass(slots=True, kw_only=True, eq=False)
class UnitRun:
    """One run of a unit, with what a replay hands out in its place.

    Attributes:
        key: the unit's key.
        start: number of slots in the frame when it began.
        arguments: how many tensors it was given.
        generators: how many generators there were: first those of the member, then those among its own arguments.
        sources: for each slot that it made, the argument that the saved tensor is a view of, and the view's offset in
            it, in elements.
        skipped: whether it is skipped, so that its result cannot be read.
        result: its result, encoded; None if it is one tensor.
        tensors: what stands for each tensor in the result.
        random: the generators that it moved, with their states after it. By number, since a replay may make new ones.
    """

    key: str
    start: int
    arguments: int
    generators: int
    sources: Sequence[tuple[int, int]]
    skipped: bool
    result: list[Any] | None
    tensors: Sequence[Detached | Shape | PassedOn]
    random: Sequence[tuple[int, Any]]

    def hand_out(self, arguments: list[Tensor]) -> Any:
        """Return what the unit returned in forward, for a replay that gave it `arguments`."""
        if self.result is None:
            return _handed(self.tensors[0], arguments)
        return decode(self.result, [_handed(tensor, arguments) for tensor in self.tensors])[0]


Entry: TypeAlias = UnitRun | str | None
"""A unit; or the key of any other call of a patched module; None for a unit that raised."""


@dataclass(slots=True, eq=False)
class Units:
    """The units of one member's forward.

    Attributes:
        handle: the `Handle` of the model, to tell its calls from those of another model.
        planned: the units of its plan.
        entries: what a replay finds, in order.
    """

    handle: object
    planned: PlannedUnits
    entries: list[Entry] = field(default_factory=list)


def stand_in(tensor: Tensor, arguments: list[Tensor], *, kept: bool) -> Detached | Shape | PassedOn:
    """Return what stands for a tensor in the result of a unit that was given `arguments`."""
    for number, argument in enumerate(arguments):
        if argument is tensor:
            return PassedOn(number, tags_of(tensor))
    return Detached(tensor, "the result of a kept call") if kept else Shape(tensor)


def _handed(stand_in: Detached | Shape | PassedOn, arguments: list[Tensor]) -> Tensor:
    """Return a tensor of a unit's result for a replay that gave it `arguments`."""
    if isinstance(stand_in, PassedOn):
        return tagged(arguments[stand_in.number], stand_in.tags)
    return stand_in.leaf()


def name_in(what: str) -> str:
    """Return the name of a module, or the name of the function or module that a key has."""
    return what.rpartition("/")[2].partition("#")[0]
