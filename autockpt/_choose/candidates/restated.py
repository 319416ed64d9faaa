"""Candidates of one step stated for another that does the same, on a batch of another size."""

from __future__ import annotations

from ..._data.profile import Profile
from . import Candidates
from .effects import replay_of
from .profile_index import Index


def restate(candidates: Candidates, profile: Profile) -> Candidates:
    """State what may be recomputed in a step as it was found in another of the same structure (`same_structure`)."""
    index = Index(profile)
    replays = [replay_of(index, each.members, each.alone) for each in candidates.replays]
    known = [replay for replay in replays if replay is not None]
    assert len(known) == len(replays), "whether backward reads what a run saves is a question of structure"
    return Candidates.of(index, known, refused=candidates.refused)
