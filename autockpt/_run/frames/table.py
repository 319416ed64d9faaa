"""A plan at run time: what happens to each call, by its key."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import nn

from ..._calls.found.spared import Inside
from ..._data.offload import Moved
from ..._data.plan import Plan
from ..._stash.plan_stash import PlanStash
from .frame import Frame, Replayer
from .unit import PlannedUnits
from .unplanned import UnplannedCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a call in its segment, and what the frames of the segment need to know of it.

    Attributes:
        segment: number of the segment.
        position: the call's position in it.
        last: whether no call of the segment comes after it.
        buffers: buffers that the call changes; None if that is not known. A torch function that is known to change any
            is no member.
        linked: whether the recorded call took a result of an earlier call of the segment as it was.
        selective: whether the segment has units that a replay does not run.
        offload: what waits off the device: the segment's ``boundary``, or what the call ``saved``. In the second case
            the call is not recomputed. None if nothing waits.
        until: call at whose end the copies off the device must be done. The copies back begin with its backward. None
            if the device waits for each copy at once.
        cut: level of the part of the segment that begins with the call; 0 if no part begins there.
        unread: attributes whose tensors its replay does not need, if forward overwrites them.
        inner: what happens to the calls inside the call when it is replayed; None if they all run plain.
    """

    segment: int
    position: int
    last: bool
    buffers: Inside | None
    linked: bool
    selective: bool
    offload: Moved | None = None
    until: str | None = None
    cut: int = 0
    unread: Inside = ()
    inner: Table | None = None


class Replayers(Protocol):
    """Gives every frame of a plan its replayer.

    Attributes:
        refused: numbers of the segments that are kept because one of their replays went wrong.
        rehearsed: numbers of the segments of which a replay has run.
    """

    @property
    def refused(self) -> Collection[int]: ...

    @property
    def rehearsed(self) -> Collection[int]: ...

    def begin(self) -> None:
        """Begin another forward of the model."""

    def replayer(self, segment: int) -> Replayer:
        """Return the replayer of the next frame of a segment, by the segment's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A plan at run time. A frame keeps the table that it was made under.

    Attributes:
        plan: the plan; None before there is one.
        parents: names of the modules whose calls make members.
        members: the calls that are recomputed, torch functions of a caller's own code among them.
        units: what their replays do not run.
        names: names of the modules that `members` has calls of.
        replayers: gives frames their replayers; None if nothing is compared.
        unplanned: tells which calls the plan does not know.
        stash: where tensors wait that the plan moves.
        ends: calls at whose end some copies to the stash must be done.
        around: by number of a segment, what wraps the replayers of its frames. Most segments have no entry.
        early: numbers of the segments whose replays may run before their backward begins.
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
    early: Collection[int] = frozenset()


class Handle:
    """What the patched forwards of a model share from `apply` to `remove`. A deep copy of the model has one of its own.

    Attributes:
        table: what they do now. A new plan is a new table.
        patched: by name of each patched module, whether it had a `forward` of its own before.
        roots: names of the modules whose forwards the user's loop calls.
        watched: wraps the replayers of all frames, for code that watches replays; None if no code does.
        made_early: told of each forward that made frames of segments in `Table.early`; None if nobody listens.
        began: told of each training forward of a root that begins, with its name; None if nobody listens.
    """

    __slots__ = ("began", "made_early", "patched", "roots", "table", "watched")

    def __init__(self, table: Table, roots: tuple[str, ...] = ("",)) -> None:
        self.table, self.roots = table, roots
        self.patched: dict[str, bool] = {}
        self.watched: Callable[[Replayer], Replayer] | None = None
        self.made_early: Callable[[object, list[weakref.ref[Frame]]], object] | None = None
        self.began: Callable[[nn.Module, str], object] | None = None
