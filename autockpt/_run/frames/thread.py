"""What a thread knows about the plans that run in it: with the claims of replays, all mutable state at module level."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .patches import Patches
    from .recording import Recording
    from .selection import FunctionWatch, Selector


class Scope:
    """One call of a parent, within which members join a frame.

    Attributes:
        patches: those of the plan that the parent was patched with.
        token: theirs.
        counts: calls so far within the root's call, by qualified name; shared by all scopes of it.
        begun: segments of which a call has run within the root's call; shared likewise.
        recording: the frame that the next member may join.
        inside: whether a member is running, so that what it calls runs plain.
    """

    __slots__ = ("begun", "counts", "inside", "patches", "recording", "token")

    def __init__(self, patches: Patches, counts: dict[str, int], begun: set[int]) -> None:
        self.patches = patches
        self.token = patches.token
        self.counts = counts
        self.begun = begun
        self.recording: Recording | None = None
        self.inside = False

    def end_frame(self) -> None:
        """Let no further member join the frame."""
        if self.recording is not None:
            self.recording.close()
            self.recording = None


class _Thread(threading.local):
    """What runs in this thread now.

    Attributes:
        scope: the innermost call of a parent.
        replays: how many replays it is in.
        selector: decides about units, while a member runs some of which are kept or skipped.
        watch: the function mode of the call whose own code is running, where it has units.
    """

    scope: Scope | None = None
    replays: int = 0
    selector: Selector | None = None
    watch: FunctionWatch | None = None


thread = _Thread()


def is_recomputing() -> bool:
    """Whether the code that asks runs in a replay, a second time for the same forward.

    Example:
        >>> from autockpt import is_recomputing
        >>> is_recomputing()
        False
    """
    return thread.replays > 0
