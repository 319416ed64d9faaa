"""What a plan is at run time, and what a thread knows of the plans that run in it."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from .._data.plan import Plan
from .strangers import Strangers

if TYPE_CHECKING:
    from .leaves import FunctionWatch, Leaves
    from .nets import Nets
    from .recording import Recording


Buffers: TypeAlias = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""Buffers inside a module: the path to each module that has some, and their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a call stands that is recomputed.

    Attributes:
        segment: number of the segment.
        position: the call's position in it.
        buffers: buffers that the call changes; None if that is not known. A torch function that is known to change any
            is no member.
        linked: whether the recorded call took a result of an earlier call of the segment as it was.
        selective: whether the segment has leaves that a replay does not run.
    """

    segment: int
    position: int
    buffers: Buffers | None
    linked: bool
    selective: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """Functions of one call's own code that are members or leaves.

    Attributes:
        keys: their keys, by name and occurrence.
        count: how many there are.
        only: the key of the first function of its name, where no other is wanted; else None.
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
class Table:
    """A plan at run time: what becomes of which call, by its key.

    A frame keeps the table that it was made under.

    Attributes:
        plan: the plan; None before there is one.
        parents: names of the modules whose calls make members.
        members: the calls that are recomputed, torch functions of a caller's own code among them.
        leaves: calls and functions that a replay does not run; whether their results are kept, or else skipped.
        functions: by the key of a call, those of its own code that are members or leaves.
        names: names of the modules that `members` has calls of.
        inside: names of the modules that `leaves` has calls of, or functions of whose code.
        nets: what compares replays with their forwards; None where nothing does.
        strangers: tells the calls that the plan does not know.
    """

    plan: Plan | None = None
    parents: Collection[str] = frozenset()
    members: Mapping[str, Place] = field(default_factory=dict)
    leaves: Mapping[str, bool] = field(default_factory=dict)
    functions: Mapping[str, Wanted] = field(default_factory=dict)
    names: Collection[str] = frozenset()
    inside: Collection[str] = frozenset()
    nets: Nets | None = None
    strangers: Strangers = field(default_factory=Strangers)


class Handle:
    """What the patched forwards of a model have in common, from `apply` to `remove`: copies and pickles take it along.

    Attributes:
        table: what they do now. A new plan is a new table.
        patched: the modules that have one, by name; whether each had a `forward` of its own before.
        roots: names of the modules whose forwards the user's loop calls.
    """

    __slots__ = ("patched", "roots", "table")

    def __init__(self, table: Table, roots: tuple[str, ...] = ("",)) -> None:
        self.table, self.roots = table, roots
        self.patched: dict[str, bool] = {}


class Scope:
    """One call of a parent, within which members join a frame.

    Attributes:
        handle: that of the model.
        table: its table when the root was called.
        counts: calls so far within the root's call, by qualified name; shared by all scopes of it.
        begun: segments of which a call has run within the root's call; shared likewise.
        recording: the frame that the next member may join.
        inside: whether a member is running, so that what it calls runs plain.
    """

    __slots__ = ("begun", "counts", "handle", "inside", "recording", "table")

    def __init__(self, handle: Handle, outer: Scope | None) -> None:
        self.handle = handle
        self.table: Table = handle.table if outer is None else outer.table
        self.counts: dict[str, int]
        self.begun: set[int]
        self.recording: Recording | None = None
        self.inside = False
        if outer is not None:
            self.counts, self.begun = outer.counts, outer.begun
            return
        (self.counts, self.begun), thread.carried = thread.carried or ({}, set()), None
        if self.table.nets is not None:
            self.table.nets.begin()

    def end_frame(self) -> None:
        """Let no further member join the frame."""
        if self.recording is not None:
            self.recording.frame.closed = True
            self.recording = None


class _Thread(threading.local):
    """What runs in this thread now: all mutable state at module level.

    Attributes:
        scope: the innermost call of a parent.
        replays: how many replays it is in.
        leaves: meets the leaves of the member that runs, in forward or in its replay; None where it has none.
        watch: the function mode of the call whose own code is running, where functions of it are members or leaves.
        carried: counts of calls, and segments begun, in earlier forwards of the same step.
        governor: who held the model to a budget that trained last.
    """

    governor: weakref.ref[Any] | None = None
    scope: Scope | None = None
    replays: int = 0
    carried: tuple[dict[str, int], set[int]] | None = None
    leaves: Leaves | None = None
    watch: FunctionWatch | None = None

    def put_back(self, scope: Scope | None, replays: int, leaves: Leaves | None, watch: FunctionWatch | None) -> None:
        """Have what ran before a replay."""
        self.scope, self.replays, self.leaves, self.watch = scope, replays, leaves, watch


thread = _Thread()


@contextmanager
def carrying(counts: tuple[dict[str, int], set[int]]) -> Iterator[None]:
    """Number the calls of a forward after those that the counts tell of, which go on."""
    thread.carried = counts
    try:
        yield
    finally:
        thread.carried = None


def is_recomputing() -> bool:
    """Whether the code that asks runs in a replay, a second time for the same forward.

    Example:
        >>> from autockpt import is_recomputing
        >>> is_recomputing()
        False
    """
    return thread.replays > 0


def mismatch(table: Table, key: str, how: str) -> None:
    """Say that the call `key` does not fit its plan: to whoever plans anew, or else in a warning."""
    if table.strangers.calls:
        table.strangers.met = True
        return
    warnings.warn(
        f"{key} {how}. Results stay exact; memory may exceed the plan. Make the plan anew for the model as it is now.",
        stacklevel=2,
    )
