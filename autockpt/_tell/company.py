"""Which of several models a loop calls, and which other models train in it under a budget of their own.

planned together    encoder ran, unet ran, vae never did         said after the third step
apart               encoder's governor, unet's governor, ...     each is told that its budget does not know of the other
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

from .._frames.table import Handle
from .._frames.thread import thread
from ..solvers.units import listed
from . import said

STEPS_TO_COME = 3
"""Steps after which a model that never ran is said to be missing."""


class Neighbour(Protocol):
    """A governor, as another one sees it.

    Attributes:
        handle: that of its models.
        what: the model that it holds to a budget, and the budget, for a sentence.
        waits: whether a step of it is under way whose backward has not come.
    """

    handle: Handle
    what: str

    @property
    def waits(self) -> bool:
        """Whether a step of it is under way whose backward has not come."""


class Company:
    """What one governor knows of the models of its own, and of others."""

    def __init__(self) -> None:
        self._ran: set[str] = set()
        self._steps = 0
        self._trained = False

    def comes(self, name: str) -> None:
        """Note that a model of this name ran, trained or not."""
        self._ran.add(name)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Note that a step begins; return what is to be said where it is time to name those that have not run."""
        self._steps += 1
        absent = [name for name in names if name not in self._ran]
        return [said.MISSING.format(listed(absent))] if absent and self._steps == STEPS_TO_COME + 1 else []

    def meets(self, mine: Neighbour, name: str, *, planned: bool) -> list[str]:
        """Note that a model of this name trains; return what is to be said of another that trains in the same loop.

        Two that train one after the other, each to its end, are in no loop together; nor is one that is not `planned`.
        """
        self.comes(name)
        if not planned:
            return []
        last, thread.governor = thread.governor() if thread.governor is not None else None, weakref.ref(mine)
        before, self._trained = self._trained, True
        apart = last is not None and last is not mine and (before or last.waits) and bool(last.handle.patched)
        return [said.APART.format(mine.what, last.what)] if apart and last is not None else []
