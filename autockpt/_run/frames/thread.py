"""What a thread knows of the plans that run in it."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from torch.overrides import TorchFunctionMode

from ..._calls.found.state import ModuleState
from ..._calls.names import numbered
from ..._stash.overlap import Sent, arrive
from .frame import Frame
from .table import Handle, Place, Table
from .unit import PlannedUnits

Function: TypeAlias = Callable[..., Any]


class MeetsUnits(Protocol):
    """Handles the units of the member that runs: a recorder of units in forward, and later a replay.

    Attributes:
        handle: the `Handle` of the model.
        planned: the units of its plan.
    """

    @property
    def handle(self) -> object: ...
    @property
    def planned(self) -> PlannedUnits: ...

    def enter(self, name: str, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a patched module: as a unit, with its functions watched, or plain."""

    def unit(self, key: str, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit, or hand out its result."""


class OpenFrame(Protocol):
    """A frame that members still join.

    Attributes:
        frame: the frame that outlives it.
    """

    @property
    def frame(self) -> Frame: ...

    def takes(self, place: Place) -> bool:
        """Whether the member at `place` may join."""

    def run(
        self,
        key: str,
        forward: Function,
        state: ModuleState,
        place: Place,
        scope: Scope,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a member's `forward` so that the frame can run it again; its `state` has just been taken."""

    def close(self) -> None:
        """Let no further member join."""


class OwnCode(TorchFunctionMode):
    """Sees the torch functions that one call's own code calls.

    Args:
        handle: the `Handle` of the model.

    Attributes:
        handle: the same.
    """

    def __init__(self, handle: object) -> None:
        super().__init__()
        self.handle = handle


class Scope:
    """One call of a parent, within which members join a frame.

    Attributes:
        handle: the `Handle` of the model.
        table: its table when the root was called.
        key: the call's key.
        counts: calls so far within the root's call, by qualified name; shared by all scopes of it.
        begun: segments of which a call has run within the root's call; shared likewise.
        open: the frame that the next member may join.
        inside: whether a member is running, so that what it calls runs plain.
        underway: copies off the device, by the call at whose end they must be done; shared likewise.
        records: makes frames; None for frames of a plan in forward.
        early: frames of segments in `Table.early`; shared likewise.
    """

    __slots__ = (
        *("begun", "counts", "early", "handle", "inside", "is_root", "key", "open", "records", "table"),
        "underway",
    )

    def __init__(self, handle: Handle, outer: Scope | None, key: str = "") -> None:
        self.handle, self.key = handle, key
        self.table: Table = handle.table if outer is None else outer.table
        self.counts: dict[str, int]
        self.begun: set[int]
        self.open: OpenFrame | None = None
        self.inside = False
        self.is_root = outer is None
        self.underway: dict[str, list[Sent]]
        self.records: Callable[..., OpenFrame] | None = None
        self.early: list[weakref.ref[Frame]]
        if outer is not None:
            self.counts, self.begun, self.underway = outer.counts, outer.begun, outer.underway
            self.records, self.early = outer.records, outer.early
            return
        self.underway, self.early = {}, []
        (self.counts, self.begun), thread.carried = thread.carried or ({}, set()), None
        if self.table.replayers is not None:
            self.table.replayers.begin()

    @classmethod
    def in_replay(
        cls, handle: Handle, table: Table, counts: Mapping[str, int], records: Callable[..., OpenFrame]
    ) -> Scope:
        """Return the scope of a member that is replayed; arguments as for `Within`, and `records` as in a scope."""
        scope = cls.__new__(cls)  # no forward of the root begins
        scope.handle, scope.table, scope.key, scope.records = handle, table, "", records
        scope.counts, scope.begun, scope.underway = dict(counts), set(), {}
        scope.open, scope.inside, scope.is_root, scope.early = None, False, False, []
        return scope

    def count(self, name: str) -> int:
        """Count a call of a module; return how many there were before."""
        return numbered(self.counts, name)

    def end(self) -> None:
        """Note that the call is over. If it is the root's, the device waits for all copies that are not done."""
        self.end_frame()
        if self.is_root and self.underway:
            for sent in self.underway.values():
                arrive(sent, ())
            self.underway.clear()

    def end_frame(self) -> None:
        """Let no further member join the frame."""
        if self.open is not None:
            self.open.close()
            self.open = None


class _Thread(threading.local):
    """What runs in this thread now. This is all mutable state at module level.

    Attributes:
        scope: the innermost call of a parent.
        replays: how many replays it is in.
        units: handles the units of the member that runs, in forward or in its replay; None if it has none.
        watch: the function mode of the call whose own code is running; None if no function in it is a member or unit.
        carried: counts of calls, and segments begun, in earlier forwards of the same step.
        governor: that of the planned model that trained last.
        functions: by the code of a function that recomputes by itself, what its replays have shown.
    """

    def __init__(self) -> None:
        self.functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    governor: weakref.ref[Any] | None = None
    scope: Scope | None = None
    replays: int = 0
    carried: tuple[dict[str, int], set[int]] | None = None
    units: MeetsUnits | None = None
    watch: OwnCode | None = None

    def put_back(self, scope: Scope | None, replays: int, units: MeetsUnits | None, watch: OwnCode | None) -> None:
        """Restore what ran before a replay."""
        self.scope, self.replays, self.units, self.watch = scope, replays, units, watch


thread = _Thread()


@contextmanager
def numbering_on(counts: tuple[dict[str, int], set[int]]) -> Iterator[None]:
    """Let the next forward go on with the `counts` of calls, and segments begun, of an earlier one."""
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
    """Report that the call `key` does not fit its plan: to code that can plan anew, or else in a warning."""
    if table.unplanned.calls:
        table.unplanned.met = True
        return
    warnings.warn(
        f"{key} {how}. Results stay exact; memory may exceed the plan. Make the plan anew for the model as it is now.",
        stacklevel=2,
    )
