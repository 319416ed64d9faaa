"""Steps on batches that were never recorded, foretold from two that were."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations

from ..._data.profile import Profile
from ..growth import Growth, same_structure
from .batch import Batch

HEADROOM = 1.25
"""A plan is made for a batch that is larger by this than the one that needs it, so that the next few need none."""

MARGIN = 0.03
"""Share of the budget left alone where a step is foretold: two sizes do not tell everything about a third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Steps of which it is known what they hold.

    Attributes:
        batch: the largest that they have.
        gradient_bytes: of parameters, of the gradients that they may begin with.
        profile: of a step on that batch.
        recorded: whether the profile was recorded, not foretold.
    """

    batch: Batch
    gradient_bytes: int
    profile: Profile
    recorded: bool

    def includes(self, batch: Batch, gradient_bytes: int) -> bool:
        """Whether a step on `batch` needs no more memory; one that begins with more gradients does."""
        return self.gradient_bytes >= gradient_bytes and self.batch.covers(batch)


def foreseen(batch: Batch, gradient_bytes: int, known: Iterable[Known]) -> Iterator[Known]:
    """Foretell steps on batches that include `batch`, the largest first.

    Args:
        batch: that is wanted.
        gradient_bytes: of the gradients that the step begins with.
        known: of those that were recorded, two must differ in one size, and `batch` from them in no other.

    Yields:
        What is foretold; nothing where no two recorded steps tell.
    """
    recorded = [each for each in known if each.recorded and each.gradient_bytes == gradient_bytes]
    for small, large in permutations(recorded, 2):
        between = small.batch.varying(large.batch)
        if between is None or between.mine > between.theirs or same_structure(small.profile, large.profile):
            continue
        beyond = large.batch.varying(batch)
        if (large.batch != batch) if beyond is None else (beyond.places != between.places):
            continue
        size = between.theirs if beyond is None else beyond.theirs
        growth = Growth.of({between.mine: small.profile, between.theirs: large.profile})
        exactly = [] if beyond is None else [size]  # a recorded step need not be foretold
        for expected in (math.ceil(size * HEADROOM), *exactly):
            yield Known(
                batch=batch.resized(between.places, expected),
                gradient_bytes=gradient_bytes,
                profile=growth.at(expected),
                recorded=False,
            )
        return
