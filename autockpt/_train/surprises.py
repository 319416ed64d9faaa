"""Finds what steps do that their plan does not count on, and decides which steps to record because of it."""

from __future__ import annotations

from .._batches.batch import Kind
from .._data.errors import ProfilingError

MOST_TRIES = 4
"""How often a recording may fail, or a step do what its plan does not count on. After that the plan stays."""

MOST_WAITS = 2
"""How many recorded steps are refused for a forward without backward. Later ones are kept: the loop is like that."""

MOST_RECORDED = 16
"""How many steps may be recorded with none under a plan between them. Sizes that grow are covered by then: plans have
headroom. After that no step is recorded for being of another kind, since the next one will be too."""

MOST_KINDS = 100
"""Kinds of steps whose numbers of autograd nodes are remembered."""


class Surprises:
    """Compares steps with earlier ones.

    Attributes:
        tries: how often a step did what its plan does not count on, or a recording failed.
        unknown: whether a step did what no recording covers, so that the next one is recorded.
        endless: whether each step is of another kind, so that no more are recorded for that.
    """

    def __init__(self) -> None:
        self.tries, self.unknown, self.endless = 0, False, False
        self._recorded = 0  # steps recorded since the last one under a plan
        # Numbers of steps: of this one, of the last uncovered one, and of the one where it is due again.
        self._number, self._last, self._due = 0, 0, 0
        # Recorded steps with a forward that waits; whether one set the model up; whether to record what was uncovered.
        self._waits, self._set_up, self._uncovered = 0, False, False
        self._nodes: dict[Kind, int] = {}  # the most autograd nodes that a step made, by kind

    @property
    def exhausted(self) -> bool:
        """Whether nothing more is done about surprises, after `MOST_TRIES`."""
        return self.tries >= MOST_TRIES

    def begins(self) -> bool:
        """Note that a step begins. Return whether to record it, since it may do what no recording covers.

        An uncovered step that comes at regular intervals is recorded when it is due again.
        """
        self._number += 1
        if self._number == self._due and not self.exhausted:
            self.unknown = self._uncovered = True
        return self.unknown

    def planned(self, *, planned: bool) -> None:
        """Note whether the step before the one that begins ran under a plan."""
        self._recorded = 0 if planned else self._recorded

    def other_calls(self, kind: Kind, nodes: int, *, unplanned: bool) -> bool:
        """Whether a step made calls that no plan knows, or more autograd nodes than any of its kind before."""
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
        """Note that a step had more backward passes than its plan counts on. Return whether the next is recorded."""
        if self.exhausted:
            return False
        self.tries += 1
        self.unknown = True
        self._comes_again()
        return True

    def learnt(self, *, new: bool) -> bool:
        """Note that a step was recorded, and whether it was `new`. Return whether it is the step that was looked for.

        If it is not, a later one may be: steps with one forward and with several may take turns.
        """
        self._recorded += 1
        self.endless = self.endless or self._recorded >= MOST_RECORDED
        before, self._uncovered = self.unknown, self._uncovered and not new
        self.tries += self._uncovered
        self._uncovered = self._uncovered and self.tries < MOST_TRIES - 1  # after that, only when it is due
        self.unknown = self._uncovered
        self._due, self._last = (0, 0) if new else (self._due, self._last)
        return before and new

    def uncovered(self) -> bool:
        """Note that a step makes more forwards than plans cover. Return whether nothing more is done about that."""
        if self._number != self._last:
            self.unknown = self._uncovered = not self.exhausted and not self._last
            self._comes_again()
        return self.exhausted

    def _comes_again(self) -> None:
        """Expect such a step again after as many steps as there were since the last one."""
        self._due, self._last = 2 * self._number - self._last, self._number

    def refuse(self, *, here: bool, waits: bool) -> None:
        """Refuse a recorded step that is unlike the steps to come.

        Args:
            here: whether the next step runs in the same thread.
            waits: whether one of its forwards had no backward. An exception may have come between the two. Then what
                is held of that forward is not part of a step.

        Raises:
            ProfilingError: the step is refused; the message says why.
        """
        if not here:
            raise ProfilingError("the next step runs in another thread")
        self._waits += waits
        if waits and self._waits <= MOST_WAITS:
            raise ProfilingError("a forward of the step had no backward, while its outputs were still held")

    def sets_up(self, changed: bool) -> bool:
        """Whether a recorded step is the first that `changed` attributes of modules. What it set up stays set up."""
        first = changed and not self._set_up
        self._set_up = self._set_up or changed
        return first
