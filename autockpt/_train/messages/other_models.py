"""Which of several models a loop calls, and which other models train in it under a budget of their own.

planned together    encoder ran, unet ran, vae never did       warns of vae after three steps
apart               encoder and unet each have a governor      warns that neither budget counts the other model
compiled            unet is compiled as a whole, and held      the same, and no one budget for both is advised
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from ..._run.frames.thread import thread
from ...solvers.units import listed
from . import said

STEPS_TO_COME = 3
"""After this many steps, a warning names the models that never ran."""


class OtherGovernor(Protocol):
    """A governor, or what holds a compiled model, as another one sees it.

    Attributes:
        what: the model and its budget, as part of a sentence.
        compiled: whether the model is compiled as a whole.
        holds: whether the model still has the budget.
        waits: whether a step of it is under way that still waits for a backward.
    """

    what: str

    @property
    def compiled(self) -> bool:
        """Whether the model is compiled as a whole."""

    @property
    def holds(self) -> bool:
        """Whether the model still has the budget."""

    @property
    def waits(self) -> bool:
        """Whether a step of it is under way that still waits for a backward."""


class OtherModels:
    """Which of its own models one governor has seen, and which other governor's model trains in the same loop."""

    def __init__(self) -> None:
        self._ran: set[str] = set()
        self._steps = 0
        self._trained = False

    def comes(self, name: str) -> None:
        """Note that the model with this name ran, in training or not."""
        self._ran.add(name)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Note that a step begins. After `STEPS_TO_COME` steps, return a warning that names models that never ran."""
        self._steps += 1
        absent = [name for name in names if name not in self._ran]
        return [said.MISSING.format(listed(absent))] if absent and self._steps == STEPS_TO_COME + 1 else []

    def meets(self, mine: OtherGovernor, name: str, *, planned: bool) -> list[str]:
        """Note that the model with this name trains. Return a warning if another governor's model trains in its loop.

        Two models that train one after the other, each to its end, share no loop. No warning if this one is not
        `planned`.
        """
        self.comes(name)
        if not planned:
            return []
        last, thread.governor = thread.governor() if thread.governor is not None else None, weakref.ref(mine)
        before, self._trained = self._trained, True
        apart = last is not None and last is not mine and (before or last.waits) and last.holds
        if not apart or last is None:
            return []
        text = said.APART_COMPILED if mine.compiled or last.compiled else said.APART_EAGER
        return [text.format(mine.what, last.what)]


def telling() -> Callable[[OtherGovernor], None]:
    """Return what notes that a compiled model trains, and warns once of each model that trains in its loop."""
    others, warn = OtherModels(), said.WarnOnce()
    return lambda mine: warn.once(*others.meets(mine, "", planned=True))
