"""What a governor decides as a step begins: one value, by one table.

a plan covers the step                                            Keep
a step of its kind is recorded, but none is timed yet             Time, whatever the sizes
no recording covers the step, or the last one made other calls    Record; or Wait where each step is of another kind
recorded and timed, or measured above the budget                  Replan; or Wait for ranks that cannot plan yet
planned, but no plan keeps to the budget                          Lowest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .._batches.batch import Batch
from .history import History
from .known import Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known of the step that begins.

    Attributes:
        batch: the batch of its first forward.
        gradient_bytes: bytes of the gradients that exist as it begins.
        unknown: whether it may do what no recording covers.
        endless: whether each step so far was of another kind.
        surprise: what the last step showed that its plan did not count on; empty if nothing.
    """

    batch: Batch
    gradient_bytes: int = 0
    unknown: bool = False
    endless: bool = False
    surprise: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a step runs.

    Attributes:
        what: ``Keep`` the plan that covers the step; ``Record`` or ``Time`` the step, with saved tensors spilled;
            ``Replan`` before it runs; run it under the ``Lowest`` plan, which exceeds the budget, with a warning; or
            ``Wait`` until other ranks can plan, or for a step of a known kind, with saved tensors spilled.
        reason: why, for a message; empty if there is nothing to say.
        ready: the plan, if there is one.
    """

    what: Literal["Keep", "Record", "Time", "Replan", "Lowest", "Wait"]
    reason: str = ""
    ready: Ready | None = None

    @classmethod
    def under(cls, ready: Ready) -> Decision:
        """Run the step under a plan that covers it."""
        return cls("Lowest", ready.unfit, ready) if ready.unfit else cls("Keep", "", ready)


def decide(history: History, situation: Situation) -> Decision:
    """Decide how the step that begins runs."""
    batch, gradient_bytes = situation.batch, situation.gradient_bytes
    if not (situation.unknown or history.timed) and history.has_met([batch], gradient_bytes):
        return Decision("Time")
    ready = history.plan_for(batch, gradient_bytes)
    if situation.unknown or (ready is None and history.recording(batch, gradient_bytes) is None):
        return Decision("Wait" if situation.endless and not situation.unknown else "Record")
    if situation.surprise or ready is None:
        return Decision("Replan", situation.surprise or "a step of its kind was recorded")
    return Decision.under(ready)
