"""Plans: which calls are recomputed, with predicted peak and cost. JSON, no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from ..solvers.units import shown
from .cuts import Level, depth_of
from .errors import InvalidFile, NotApplicable
from .files import Stored
from .goal import Goal
from .offload import AS_IT_WAS, Moved, Offload
from .profile import Profile, refuse_no_profile
from .text.amounts import Bytes, Seconds
from .text.keys import MEMBER, CallKey, MemberKey, UnitKey, split_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .timeline import MemoryTimeline


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of consecutive sibling calls that are recomputed together.

    Attributes:
        calls: the calls, in forward order; among them torch functions that the parent's own code calls.
        parent: the call whose forward makes them; None lets `apply` find it from the names.
        buffers: qualified names of the buffers that these calls change in forward; None means unknown, and
            every buffer inside is then snapshotted.
        unread: qualified names of attributes that these calls overwrite and do not read: nothing holds their tensors.
        keep: units inside that the replay does not run again, since their results and what they save stay. A
            function among `calls` may be one.
        skip: units that it does not run again, since nothing that it needs reads their results.
        linked: those of `calls` that take a result of an earlier one as it is; where they stop doing so the
            boundary grows, and a warning says it.
        cuts: where the replay goes in parts, which is recomputing below one level: for each call 0, or the level of the
            part that begins with it. The parts of the lowest level are the outermost; a part with cuts inside goes in
            parts itself. Empty where the replay is one.
        inner: runs of module calls inside its own that are recomputed again: its replay leaves what they save to
            replays of their own. They are segments as any other.
        recompute_seconds: predicted cost per step.
        freed_bytes: predicted bytes of activations that keeping the segment would hold and recomputing it drops.
        boundary_bytes: predicted bytes that must stay alive so that it can be recomputed.
        kept_bytes: predicted bytes that its units leave alive besides.
        offload: what of it waits off the device, or in parts on several ranks, from forward to backward: its
            ``boundary``, where it is recomputed; or what its one call ``saved``, which then is not. None for nothing.
        until: the copy off the device ends with this call's forward; the copy back starts with its backward. None
            where the step waits for the copies.
        moved_bytes: predicted bytes that do.
    """

    calls: Annotated[tuple[MemberKey, ...], msgspec.Meta(min_length=1)]
    parent: CallKey | None = None
    buffers: tuple[str, ...] | None = None
    unread: tuple[str, ...] = ()
    keep: tuple[UnitKey, ...] = ()
    skip: tuple[UnitKey, ...] = ()
    linked: tuple[MemberKey, ...] = ()
    cuts: tuple[Level, ...] = ()
    inner: tuple[Segment, ...] = ()
    recompute_seconds: Seconds = 0.0
    freed_bytes: Bytes = 0
    boundary_bytes: Bytes = 0
    kept_bytes: Bytes = 0
    offload: Moved | None = None
    until: CallKey | None = None
    moved_bytes: Bytes = 0

    @property
    def runs_again(self) -> bool:
        """Whether its calls run again in backward; not where what its one call saved comes back as it was."""
        return self.offload not in AS_IT_WAS

    @property
    def units(self) -> tuple[UnitKey, ...]:
        """What no replay of it runs again."""
        return (*self.keep, *self.skip)

    @property
    def goes_in_parts(self) -> bool:
        """Whether it is brought back by more than one replay: part by part, or with replays inside its own."""
        return bool(self.cuts or self.inner)

    @property
    def waits_for_copies(self) -> bool:
        """Whether the step waits for what it moves."""
        return self.offload is not None and self.until is None


DEEPEST = 16
"""How deep segments may lie inside one another."""

FIGURES = ("recompute_seconds", "freed_bytes", "boundary_bytes", "kept_bytes", "moved_bytes")
"""The fields of a segment that are predicted, and do not say what runs."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that is kept because it cannot be replayed exactly, and why."""

    call: CallKey
    reason: str


class Plan(Stored, frozen=True, kw_only=True, tag="autockpt.plan/1"):
    """Which calls to recompute, with predicted peak and cost.

    Attributes:
        model: class of the model it was made for.
        segments: what is recomputed; everything else is kept.
        solver: who chose; ``manual`` for a plan written by hand.
        status: ``optimal`` where no other choice among the candidates that keeps to `budget_bytes` is cheaper (what is
            no candidate may be, see `gap`), else ``feasible``; or ``manual``.
        goal: what was asked for; None for a plan written by hand, and for one of a frontier.
        budget_bytes: the peak that it keeps to: the budget, in plans of `apply` on CUDA less a margin for the device's
            allocator; its own peak where the lowest was asked for; None for a plan written by hand.
        peak_bytes: predicted peak of the whole step; 0 where nothing was predicted.
        plain_peak_bytes: predicted peak of the plain step.
        recompute_seconds: predicted extra forward seconds per step; on a device, how much longer the step takes on two
            clocks, the host's and the device's.
        plain_seconds: recorded seconds of the plain step; where nothing ran for a device, simulated on two clocks.
        host_pace_seconds: predicted part of the planned step in which the host sets the pace; None for a step with one
            clock.
        host_mode: ``measured`` where the profile has the host's seconds; None where they are assumed, or one clock
            is all.
        lower_bound_seconds: no method that keeps to the budget recomputes less, whichever operators it keeps,
            recomputes or skips; None if no bound is known.
        choice_bound_seconds: no plan made of the same candidates is cheaper; None if no bound is known.
        profile_mode: how the profile was recorded (``measured``, ``fake``); None for a plan by hand.
        offload: where tensors wait off the device, and the rates that this was priced with; None where none do.
        pinned_keep: patterns of calls that the solver had to keep.
        pinned_recompute: patterns of calls that it had to recompute.
        refused: calls kept because they cannot be replayed exactly.
        own_replays: what the model recomputes itself beside the plan; see `Profile`.
        notes: what the profile could not see or put back, and what may have kept the solver from a cheaper plan.
    """

    PAGE: ClassVar[str] = "explain.plan.plan_page"
    BRIEF: ClassVar[str] = "explain.brief.brief_plan"
    RARE: ClassVar[tuple[str, ...]] = ("own_replays", "host_pace_seconds", "host_mode")

    model: str = ""
    segments: tuple[Segment, ...] = ()
    solver: str = "manual"
    status: Literal["optimal", "feasible", "manual"] = "manual"
    goal: Goal | None = None
    budget_bytes: Bytes | None = None
    peak_bytes: Bytes = 0
    plain_peak_bytes: Bytes = 0
    recompute_seconds: Seconds = 0.0
    plain_seconds: Seconds = 0.0
    host_pace_seconds: Seconds | None = None
    host_mode: Literal["measured"] | None = None
    lower_bound_seconds: Seconds | None = None
    choice_bound_seconds: Seconds | None = None
    profile_mode: Literal["measured", "fake"] | None = None
    offload: Offload | None = None
    pinned_keep: tuple[str, ...] = ()
    pinned_recompute: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    own_replays: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for segment in self.segments:
            for call in (*_refuse_segment(segment, self.offload),):
                if call in seen:
                    raise InvalidFile(f"call {shown(call)} stands in the plan twice")
                seen.add(call)
            functions = {call for call in segment.calls if split_key(call)[1]}
            for unit in segment.units:
                if unit in seen - functions:
                    raise InvalidFile(f"{shown(unit)} stands in the plan twice: as a segment, kept, or skipped")
                seen.add(unit)
                functions.discard(unit)

    @classmethod
    def of(cls, segments: Sequence[Sequence[str] | str]) -> Plan:
        """Make a plan by hand.

        Args:
            segments: one entry a segment: a call, or a run of sibling calls. A bare qualified name means
                its first call in the step.

        Returns:
            A plan with no predictions.

        Raises:
            InvalidFile: a segment is neither a name nor a sequence of names, or a name is none of a call.

        Example:
            >>> from autockpt import Plan
            >>> [segment.calls for segment in Plan.of(["h.0", ["h.1", "h.2"]]).segments]
            [('h.0#0',), ('h.1#0', 'h.2#0')]
        """
        return cls(segments=tuple(Segment(calls=calls) for calls in _keys_by_hand(segments)))

    @property
    def recompute_overhead(self) -> float:
        """Predicted recompute seconds over the plain step's seconds, a ratio; 0 where nothing was recorded."""
        return self.recompute_seconds / self.plain_seconds if self.plain_seconds else 0.0

    @property
    def gap(self) -> float | None:
        """No method could save more than this share: (cost - lower bound) / cost; None if no bound is known.

        The bound is of operators alone, without the host's time, and need not be within reach.
        """
        return self._gap(self.lower_bound_seconds)

    @property
    def choice_gap(self) -> float | None:
        """No other choice among the same candidates could save more than this share; None if no bound is known."""
        return self._gap(self.choice_bound_seconds)

    def _gap(self, bound_seconds: float | None) -> float | None:
        if bound_seconds is None:
            return None
        cost = self.recompute_seconds
        return max(cost - bound_seconds, 0.0) / cost if cost else 0.0

    def timeline(self, profile: Profile) -> MemoryTimeline:
        """Predict the memory of the recorded step under this plan, step by step, split by what stands there.

        Args:
            profile: the recorded step, as a rule the one that the plan was made from. A plan written by hand has a
                timeline too.

        Returns:
            The timeline. Its peak is `peak_bytes`, to the byte, where the plan was made from this profile.

        Raises:
            InvalidProblem: two segments overlap.
            NotApplicable: the plan does not fit the recorded step.

        Example:
            >>> import autockpt
            >>> profile = autockpt.Profile.load("resnet-50")
            >>> plan = autockpt.solve(profile, "8GB", solver="uniform")
            >>> plan.timeline(profile).peak_bytes == plan.peak_bytes
            True
        """
        refuse_no_profile(profile)
        timeline: MemoryTimeline = profile._shown("explain.plan.predict_timeline", self)
        return timeline

    def explain(self, profile: Profile | None = None) -> str:
        """Return the plan as text: totals, what is recomputed, what was refused and why.

        Args:
            profile: the profile that it was made from, for a chart of the predicted memory over the step, and for
                what is decided about each call, what that holds, frees and costs, and why.
        """
        text: str = self._page(profile).text()
        return text

    def plot(self, profile: Profile, *, ax: Axes | None = None) -> Figure:
        """Draw what stands over the recorded step under this plan, with the plain step, the budget and the peak.

        By matplotlib (``pip install "autockpt[plot]"``).

        Args:
            profile: the recorded step, as for `timeline`.
            ax: axes to draw in; None for a figure of its own, which pyplot knows nothing of.

        Returns:
            The figure; a notebook shows it as the value of a cell, and ``.savefig("plan.png")`` writes it.

        Raises:
            InvalidProblem: two segments overlap.
            MissingExtra: matplotlib is not installed.
            NotApplicable: the plan does not fit the recorded step.

        Example:
            >>> import autockpt
            >>> profile = autockpt.Profile.load("resnet-50")
            >>> figure = autockpt.solve(profile, "8GB", solver="uniform").plot(profile)
        """
        refuse_no_profile(profile)
        figure: Figure = profile._drawn("memory.draw_memory", self, ax)
        return figure


def levels_of(segment: Segment) -> int:
    """Return how many levels of recomputing a segment has: those of its parts, and those inside their calls."""
    return depth_of(segment.cuts) + max(map(levels_of, segment.inner), default=0)


def _refuse_segment(
    segment: Segment, offload: Offload | None, around: Segment | None = None, depth: int = 0
) -> Iterator[str]:
    """Refuse a segment that cannot be such, under what a plan says of moving; yield its calls, and of those inside it.

    Raises:
        InvalidFile: it cannot, or one inside it.
    """
    if not segment.calls:
        raise InvalidFile(f"{'a' if around is None else 'an inner'} segment of the plan has no calls")
    if depth > DEEPEST:
        raise InvalidFile(f"the segment of {shown(segment.calls[0])} lies inside more than {DEEPEST} levels of others")
    if why := _why_not(segment, offload, around):
        raise InvalidFile(why)
    yield from segment.calls
    for each in segment.inner:
        yield from _refuse_segment(each, offload, segment, depth + 1)


def _why_not(segment: Segment, offload: Offload | None, around: Segment | None) -> str:
    """Say why a segment cannot be such: the first of the rows of what excludes what that holds; empty if it can."""
    name, number, cuts = shown(segment.calls[0]), len(segment.calls), segment.cuts
    units, moves, again, until = bool(segment.units), segment.offload is not None, segment.runs_again, segment.until
    shard = offload is not None and offload.is_shard
    mixed = around is not None and (around.units or around.offload)
    deeper = around is not None and (units or moves or any(split_key(call)[1] for call in segment.calls))
    wrong = cuts and (len(cuts) != number or cuts[0] or not any(cuts) or max(cuts) >= number)
    excluded = (
        (mixed, f"the segment around {name} keeps or skips units, or moves tensors: leave out its inner"),
        (deeper, f"the inner segment of {name} has calls of modules only, all of them recomputed"),
        (until is not None and not moves, f"the segment of {name} says until when, and moves nothing"),
        (shard and (until or not again), f"offload='shard' keeps parts of boundaries alone: not so {name}"),
        (
            not again and (number > 1 or units),
            f"the segment of {name} moves what its calls save: it is one call, without units",
        ),
        (
            wrong,
            f"the replay of the segment of {name} cannot go in parts by the cuts {shown(list(cuts))}: there is one for "
            f"each of its {number} calls, 0 for the first, a level below {number} where a part begins, and some part "
            "does",
        ),
        (
            cuts and units,
            f"the segment of {name} keeps or skips units, so its replay cannot go in parts: leave out its cuts",
        ),
        (cuts and moves, f"the segment of {name} moves tensors, so its replay cannot go in parts: leave out its cuts"),
    )
    return next((why for holds, why in excluded if holds), "")


def refuse_no_plan(plan: object) -> None:
    """Refuse what is no plan.

    Raises:
        NotApplicable: it is none.
    """
    if not isinstance(plan, Plan):
        raise NotApplicable(f"plan is {shown(plan)}; give a Plan, such as autockpt.Plan.load('plan.json').")


def _keys_by_hand(segments: object) -> Iterator[tuple[str, ...]]:
    """Read the calls of each segment as somebody writes them by hand."""
    if isinstance(segments, str) or not isinstance(segments, Sequence):
        raise InvalidFile(
            f"a plan is made of a list of segments, such as Plan.of(['h.0', ['h.1', 'h.2']]); found {shown(segments)}"
        )
    for run in segments:
        names = [run] if isinstance(run, str) else run
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise InvalidFile(
                "a segment is the name of a call or a list of such names, such as 'h.0' or ['h.1', 'h.2']; found "
                f"{shown(run)}"
            )
        keys = tuple(name if "#" in name else f"{name}#0" for name in names)
        for key in keys:
            if not re.fullmatch(MEMBER, key):
                raise InvalidFile(
                    f"{shown(key)} names no call: 'h.0#1' is the second call of the module 'h.0' in a step, and 'h.0' "
                    "its first"
                )
        yield keys
