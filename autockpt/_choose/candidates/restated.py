"""Candidates of one step stated for another that does the same, on a batch of another size.

one step       profile ──▶ runs and menus searched ──▶ members, idle units ──▶ drafts ──▶ problem
another size   profile ─────────────────────────────────────────┴────────────▶ drafts ──▶ problem
"""

from __future__ import annotations

from ..._data.profile import Profile
from . import Candidates, state_candidates
from .book import Book
from .drafts import make_draft
from .glue import is_glue, with_glue


def restate(candidates: Candidates, profile: Profile) -> Candidates:
    """State what may be recomputed in a step as it was found in another of the same structure.

    What candidates hold, restore and cost is that of this step; which there are is that of the other, whose menus
    would have other entries where one tensor grows faster than the next.

    Args:
        candidates: the other step's, without pins.
        profile: of this step, of one structure with the other's (`same_structure`).

    Returns:
        A candidate for each of the other's.

    O(candidates × calls and tensors inside).
    """
    known = candidates.profile
    glue = [f for f, call in enumerate(known.functions.call) if is_glue(known.calls[call])]
    book = Book(with_glue(profile, glue)[0])
    drafts = [draft for run in candidates.runs if (draft := make_draft(book, run.members, run.idle)) is not None]
    assert len(drafts) == len(candidates.runs), "what a run frees is a question of structure"
    return state_candidates(book, drafts, refused=candidates.refused)
