"""Which of several models a loop calls, and which other models train in it under a budget of their own.

planned together    encoder ran, unet ran, vae never did         said after the third step
apart               encoder's governor, unet's governor, ...     each is told that its budget does not know of the other
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

from . import said
from .frames import Handle
from .frames.thread import thread
from .patch_targets import listed

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

    def meets(self, mine: Neighbour) -> Neighbour | None:
        """Note that a model trains now; return who governs another that trains in the same loop, and was not it before.

        Two that train one after the other, each to its end, are in no loop together.
        """
        last, thread.governor = thread.governor() if thread.governor is not None else None, weakref.ref(mine)
        before, self._trained = self._trained, True
        return last if last is not None and last is not mine and (before or last.waits) else None
