"""What a plan is at run time: what becomes of which call, by its key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .._data.plan import Plan
from .._found.spared import Inside
from .._stash.plan_stash import PlanStash
from .frame import Replayer
from .unit import PlannedUnits
from .unplanned import UnplannedCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a call stands that is recomputed.

    Attributes:
        segment: number of the segment.
        position: the call's position in it.
        last: whether no call of the segment comes after it.
        buffers: buffers that the call changes; None if that is not known. A torch function that is known to change any
            is no member.
        linked: whether the recorded call took a result of an earlier call of the segment as it was.
        selective: whether the segment has units that a replay does not run.
        offload: what waits off the device: the segment's ``boundary``, or what the call ``saved``, which then is not
            recomputed; None for nothing.
        until: call at whose end that has left the device, and as whose backward begins it comes back; None where all
            waits for it.
        cut: level of the part of the segment that begins with the call; 0 where none does.
        unread: attributes whose tensors its replay does not need where forward overwrites them.
        inner: what becomes of the calls inside the call when it is replayed; None where they all run plain.
    """

    segment: int
    position: int
    last: bool
    buffers: Inside | None
    linked: bool
    selective: bool
    offload: Literal["boundary", "saved"] | None = None
    until: str | None = None
    cut: int = 0
    unread: Inside = ()
    inner: Table | None = None


class Replayers(Protocol):
    """Gives every frame of a plan what replays it.

    Attributes:
        refused: numbers of the segments that are kept, since a replay of them went wrong.
    """

    @property
    def refused(self) -> Collection[int]: ...

    def begin(self) -> None:
        """Begin another forward of the model."""

    def replayer(self, segment: int) -> Replayer:
        """Return what replays the next frame of a segment, by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A plan at run time. A frame keeps the table that it was made under.

    Attributes:
        plan: the plan; None before there is one.
        parents: names of the modules whose calls make members.
        members: the calls that are recomputed, torch functions of a caller's own code among them.
        units: what their replays do not run.
        names: names of the modules that `members` has calls of.
        replayers: gives frames what replays them; None where nothing is compared.
        unplanned: tells the calls that the plan does not know.
        stash: where tensors wait that the plan moves.
        ends: calls at whose end some of them have left the device.
        around: by number of a segment, what goes around the replayers of its frames; most have nothing.
    """

    plan: Plan | None = None
    parents: Collection[str] = frozenset()
    members: Mapping[str, Place] = field(default_factory=dict)
    units: PlannedUnits = field(default_factory=PlannedUnits)
    names: Collection[str] = frozenset()
    replayers: Replayers | None = None
    unplanned: UnplannedCalls = field(default_factory=UnplannedCalls)
    stash: PlanStash = field(default_factory=PlanStash)
    ends: Collection[str] = frozenset()
    around: Mapping[int, Callable[[Replayer], Replayer]] = field(default_factory=dict)


class Handle:
    """What the patched forwards of a model have in common, from `apply` to `remove`: copies and pickles take it along.

    Attributes:
        table: what they do now. A new plan is a new table.
        patched: the modules that have one, by name; whether each had a `forward` of its own before.
        roots: names of the modules whose forwards the user's loop calls.
        watched: what goes around the replayers of frames, for whoever watches replays; None for nothing.
    """

    __slots__ = ("patched", "roots", "table", "watched")

    def __init__(self, table: Table, roots: tuple[str, ...] = ("",)) -> None:
        self.table, self.roots = table, roots
        self.patched: dict[str, bool] = {}
        self.watched: Callable[[Replayer], Replayer] | None = None
