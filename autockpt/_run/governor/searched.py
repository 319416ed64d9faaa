"""What may be recomputed is searched once for steps of sizes near each other; the others state it anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..._choose.candidates import Candidates
from ..growth import same_structure
from .foresight import Known

NEAR = 2.0
"""How much longer a dimension of one batch may be than that of another for the same ways to recompute to be worth
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
    """Find a search that tells what may be recomputed in other steps too.

    Args:
        known: the other steps.
        among: the searches.

    Returns:
        The search; None if there is no such.

    O(size of a profile) each.
    """
    return next((each for each in among if _serves(each.known, known)), None)


def _serves(searched: Known, known: Known) -> bool:
    """Whether steps are of one structure, and of sizes near each other."""
    near = searched.batch.kind == known.batch.kind and searched.batch.ratio_to(known.batch) <= NEAR
    return near and not same_structure(searched.profile, known.profile)
