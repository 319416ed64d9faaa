"""What may be recomputed is searched once for steps of sizes near each other; the others state it anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._candidates import Candidates
from .._growth import same_structure
from .foresight import Known

__all__ = ["Searched", "searched_for"]

NEAR = 2.0
"""How much larger the tensors of one batch may be than those of another for the same ways to recompute to be worth
having: attention's scores grow with the square of what its projections grow with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search found.

    Attributes:
        known: the steps that it searched.
        candidates: what may be recomputed in them.
    """

    known: Known
    candidates: Candidates


def searched_for(known: Known, among: Iterable[Searched]) -> Searched | None:
    """Return one of the searches that tells what may be recomputed in other steps too, None if none does.

    O(size of a profile) each.
    """
    for each in among:
        mine, theirs = known.batch, each.known.batch
        near = mine.kind == theirs.kind and max(mine.growth_from(theirs), theirs.growth_from(mine)) <= NEAR
        if near and not same_structure(each.known.profile, known.profile):
            return each
    return None
