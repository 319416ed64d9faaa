"""What a governor decides as a step begins: one value, by one table.

a plan covers it                                              Keep
one of its kind is recorded, but no seconds yet               Time, whatever its sizes
no recording covers it, or the last step made other calls     Record
recorded and timed, or measured above the budget              Replan
planned, and no plan fits                                     Lowest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known of the step that begins.

    Attributes:
        alike: whether a step was recorded that differs from it in sizes at most.
        recorded: whether a recording covers it.
        timed: whether any step was timed.
        planned: whether a plan covers it.
        unfit: what the plan that covers it says for want of a better one; empty where it fits.
        surprise: what the last step showed that the plans did not count on; empty where nothing.
    """

    alike: bool = False
    recorded: bool = False
    timed: bool = False
    planned: bool = False
    unfit: str = ""
    surprise: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a step runs.

    Attributes:
        what: ``Keep`` the plan; ``Record`` the step, spilled; ``Time`` it, spilled; ``Replan`` before it; run it under
            the ``Lowest`` plan.
        reason: why, where that is to be said.
    """

    what: Literal["Keep", "Record", "Time", "Replan", "Lowest"]
    reason: str = ""


def decide(situation: Situation) -> Decision:
    """Decide how the step that begins runs."""
    if situation.alike and not situation.timed:
        return Decision("Time")
    if not situation.recorded:
        return Decision("Record")
    if situation.surprise or not situation.planned:
        return Decision("Replan", situation.surprise or "a step of its kind was recorded")
    if situation.unfit:
        return Decision("Lowest", situation.unfit)
    return Decision("Keep")
