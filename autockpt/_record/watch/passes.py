"""The backward passes of a step that is watched: when one begins, inside another too, or goes on."""

from __future__ import annotations

from collections.abc import Callable

from ..._torch import private
from .marks import MarkKind

LATER_PASSES: tuple[MarkKind, ...] = ("backward_again", "backward_turn")
"""The kinds of markers at which a backward pass after the first begins or goes on."""


class BackwardPasses:
    """Knows which backward pass read the last saved tensor."""

    __slots__ = ("_begun", "_reading")

    def __init__(self) -> None:
        self._begun, self._reading = False, -1

    def begin(self) -> MarkKind:
        """Return the kind of the marker at which the step's next pass begins."""
        kind: MarkKind = "backward_again" if self._begun else "forward_end"
        self._begun, self._reading = True, -1
        return kind

    def read(self, mark: Callable[[MarkKind, int], object]) -> None:
        """Note that a saved tensor is read. If another backward pass has read the previous one, mark a turn.

        Then a nested backward has begun, as in a tensor's hook, or the outer one goes on. Reads before `begin` do not
        count.
        """
        before, now = self._reading, private.running_backward()
        if now >= 0 and self._begun:
            self._reading = now
            if before not in (-1, now):
                mark("backward_turn", 0)
