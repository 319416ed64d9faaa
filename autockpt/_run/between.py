"""What the loop makes between steps, and holds in the next: photos for a critic, noise for its generator.

photos ── C's step ── noise ── G's step ── photos ── C's step      photos count in C's steps, noise in G's,
                               recorded ─────────┘                 also where a recording of G's saw the photos
"""

from __future__ import annotations

from collections.abc import Sequence

from .._record.in_place import Recorded
from .batch import Batch
from .known import Known


class Between:
    """Counts it for the kinds of steps that begin after it, which need not be the kind that was recorded before."""

    def __init__(self) -> None:
        self._made_bytes = self._coming_bytes = 0  # since the last recorded step; before the one that is under way

    def learns(self, known: Known, recorded: Recorded, others: Sequence[Known]) -> None:
        """A step was recorded, of a kind that is now known as others are."""
        self._made_bytes = recorded.made_bytes
        known.came_bytes = max(self._coming_bytes, known.came_bytes)
        known.follows = any(not each.begins_as(known.kind.batches[0]) for each in others)

    def comes(self, batch: Batch, among: Sequence[Known]) -> bool:
        """A step begins with this batch; return whether steps of a known kind hold more than was counted."""
        self._coming_bytes, self._made_bytes = self._made_bytes, 0
        grown = [each for each in among if each.begins_as(batch) and each.came_bytes < self._coming_bytes]
        for each in grown:
            each.came_bytes = self._coming_bytes
        return bool(grown)
