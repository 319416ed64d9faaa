"""The step of one model on batches of any size, with the seconds of any device. No torch.

asked size ─┬─ recorded anew, where that is possible ──────────────────────▶ Profile
            └─ else the smallest recorded one that is larger, scaled ──────▶ Profile
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

from .._choose.candidates import Candidates
from .._choose.candidates.from_plan import planned_in
from .._choose.index.profile_index import Index
from .._data.plan import Plan
from .._data.profile import Profile
from .accumulated import later
from .sized import Batches
from .timed import carried

MOST_RECORDED = 6
"""So many sizes of a batch are recorded at most; a large model takes seconds for each."""

Recorded: TypeAlias = Callable[[str, int | None], Profile | None]
"""Returns a step on so many samples with the seconds of a device, None for the batch as it is; or None if it cannot."""


class Steps:
    """Steps of one model, each made and laid out once."""

    def __init__(self, profile: Profile, recorded: Recorded | None = None) -> None:
        self._profile, self._recorded = profile, recorded
        self._sizes: dict[int, bool] = {}  # those that were asked for, and whether they could be recorded
        self.at = functools.cache(self._at)
        self.later = functools.cache(self._later)
        self.planned = functools.cache(self._planned)
        self._laid_out = functools.cache(self._index)

    def _later(self, gpu: str, size: int | None) -> Profile:
        """Return the step of a later microbatch of so many samples."""
        return later(self.at(gpu, size))

    def _planned(self, gpu: str, size: int | None, plan: Plan) -> Candidates:
        """Return the step on so many samples at once under a plan."""
        return planned_in(self._laid_out(gpu, size), plan)

    def _index(self, gpu: str, size: int | None) -> Index:
        return Index(self.at(gpu, size))

    def _at(self, gpu: str, size: int | None) -> Profile:
        """Return the step on so many samples, with the seconds of a device; None for the batch that was recorded."""
        samples = self._profile.samples
        if size is None or samples is None or size == samples:
            found = self._recorded(gpu, None) if self._recorded else None
            return found or carried(self._profile, gpu)
        if self._recorded is not None and self._sizes.get(size, sum(self._sizes.values()) < MOST_RECORDED):
            found = self._recorded(gpu, size)
            self._sizes[size] = found is not None
            if found is not None:
                return found
        larger = [each for each, able in self._sizes.items() if able and each > size]
        nearest = min(larger, default=samples)
        return Batches.of(self.at(gpu, nearest), nearest).at(size)
