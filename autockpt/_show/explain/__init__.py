"""The pages of plans, frontiers, profiles and results, with the JSON that ``autockpt explain --json`` prints."""

from __future__ import annotations

from ..._choose.timeline import predict_timeline
from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.timeline import MemoryTimeline
from ..page import DEFAULT_WIDTH
from .frontier import frontier_page as frontier_page
from .plan import plan_page as plan_page
from .profile import profile_page as profile_page
from .results import demo_text as demo_text
from .results import max_batch_page as max_batch_page
from .results import parts_text as parts_text
from .results import recorded_page as recorded_page
from .verification import headline as headline
from .verification import verification_page as verification_page
from .verification import verification_text as verification_text


def explain_plan(plan: Plan, profile: Profile | None = None, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `plan_page` as text at most `width` columns wide."""
    return plan_page(plan, profile).text(width)


def explain_frontier(frontier: Frontier, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `frontier_page` as text at most `width` columns wide."""
    return frontier_page(frontier).text(width)


def explain_profile(profile: Profile, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `profile_page` as text at most `width` columns wide."""
    return profile_page(profile).text(width)


def plan_timeline(plan: Plan, profile: Profile) -> MemoryTimeline:
    """Return the memory of the step in `profile` under `plan`; see `Plan.timeline`."""
    return predict_timeline(profile, plan)
