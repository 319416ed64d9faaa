"""What steps show that their plan does not count on."""

from __future__ import annotations

from .._batches.batch import Kind
from .._data.errors import ProfilingError

MOST_TRIES = 4
"""Recordings that fail, or are made since a step did what the plan does not count on. After them the plan stays."""

MOST_WAITS = 2
"""Recorded steps with a forward that had no backward: more are how the loop is."""

MOST_KINDS = 100
"""Kinds of steps whose numbers of calls are remembered."""


class Surprises:
    """Compares steps with those before.

    Attributes:
        tries: how often a plan was found wanting, or a recording failed.
        unknown: whether the last step did what no recording covers.
    """

    def __init__(self) -> None:
        self.tries, self.unknown = 0, False
        self._number, self._last, self._due = 0, 0, 0  # of the step, of the last that was not covered, of the next
        self._waits, self._set_up, self._uncovered = 0, False, False  # such steps that were met
        self._nodes: dict[Kind, int] = {}  # the most of autograd

    @property
    def exhausted(self) -> bool:
        """Whether nothing is to be done about surprises any more."""
        return self.tries >= MOST_TRIES

    def begins(self) -> bool:
        """Note that a step begins; whether it is to be recorded, since it may do what no recording covers.

        What came every so many steps is waited for when it is due again.
        """
        self._number += 1
        if self._number == self._due and not self.exhausted:
            self.unknown = self._uncovered = True
        return self.unknown

    def other_calls(self, kind: Kind, nodes: int, *, unplanned: bool) -> bool:
        """Whether a step called what no plan knows, or made more nodes of autograd than any of its kind before."""
        if len(self._nodes) > MOST_KINDS:
            self._nodes.clear()
        before = self._nodes.setdefault(kind, nodes)
        if (nodes <= before and not unplanned) or self.exhausted:
            return False
        self._nodes[kind] = max(nodes, before)
        self.tries += 1
        self.unknown = True
        return True

    def more_backwards(self) -> bool:
        """Note that a planned step had more backward passes than its plan counts on; whether a recording may come."""
        if self.exhausted:
            return False
        self.tries += 1
        self.unknown = True
        self._comes_again()
        return True

    def learnt(self, *, new: bool) -> bool:
        """Note that a step was recorded, of a `new` kind or not; whether it is what was unknown.

        Steps with one forward and with several may take turns: then the one after the next is, or one some steps later.
        """
        before, self._uncovered = self.unknown, self._uncovered and not new
        self.tries += self._uncovered
        self._uncovered = self._uncovered and self.tries < MOST_TRIES - 1  # then what is due is waited for
        self.unknown = self._uncovered
        self._due, self._last = (0, 0) if new else (self._due, self._last)
        return before and new

    def uncovered(self) -> bool:
        """Note that a step makes more forwards before a backward than plans cover; whether nothing is to be done."""
        if self._number != self._last:
            self.unknown = self._uncovered = not self.exhausted and not self._last
            self._comes_again()
        return self.exhausted

    def _comes_again(self) -> None:
        """Wait for what this step does until as many steps are over again as since the last that did so."""
        self._due, self._last = 2 * self._number - self._last, self._number

    def refuse(self, *, here: bool, waits: bool) -> None:
        """Refuse a recorded step that is not as those that come.

        Args:
            here: whether the next one runs in the same thread.
            waits: whether one of its forwards had no backward: an exception may have come between, and what was held
                of it then is no part of a step.

        Raises:
            ProfilingError: it is refused, and says why.
        """
        if not here:
            raise ProfilingError("the next step runs in another thread")
        self._waits += waits
        if waits and self._waits <= MOST_WAITS:
            raise ProfilingError("one of its forwards had no backward, and its outputs were held")

    def sets_up(self, changed: bool) -> bool:
        """Whether a recorded step `changed` attributes of modules, and none has before: what it set up stays."""
        first = changed and not self._set_up
        self._set_up = self._set_up or changed
        return first
