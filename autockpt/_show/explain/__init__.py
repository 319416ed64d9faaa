"""Plans, frontiers and profiles as text for people, and as the JSON that ``autockpt explain --json`` prints.

A page each for a profile, a plan and a frontier: a report is plain data, and the text is made from it alone, so that
both say the same.
"""

from __future__ import annotations

from ..._choose.timeline import predict_timeline
from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.timeline import MemoryTimeline
from .demo import demo_text
from .frontier import FrontierReport, frontier_text, report_frontier
from .layout import DEFAULT_WIDTH, MINIMUM_WIDTH, format_table
from .max_batch import explain_max_batch
from .parts import parts_text
from .plan import PlanReport, plan_text, report_plan
from .profile import ProfileReport, profile_text, report_profile
from .recorded import RecordedReport, recorded_text
from .verification import headline, verification_text

__all__ = [
    "DEFAULT_WIDTH",
    "MINIMUM_WIDTH",
    "FrontierReport",
    "PlanReport",
    "ProfileReport",
    "RecordedReport",
    "demo_text",
    "explain_frontier",
    "explain_max_batch",
    "explain_plan",
    "explain_profile",
    "format_table",
    "frontier_text",
    "headline",
    "parts_text",
    "plan_text",
    "plan_timeline",
    "profile_text",
    "recorded_text",
    "report_frontier",
    "report_plan",
    "report_profile",
    "verification_text",
]


def explain_plan(plan: Plan, profile: Profile | None = None, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `plan` as text of at most `width` columns (at least `MINIMUM_WIDTH`); given its profile, with a chart."""
    return plan_text(report_plan(plan, profile), width=width)


def explain_frontier(frontier: Frontier, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `frontier` as text at most `width` columns wide (at least `MINIMUM_WIDTH`)."""
    return frontier_text(report_frontier(frontier), width=width)


def explain_profile(profile: Profile, *, width: int = DEFAULT_WIDTH) -> str:
    """Return where the memory and time of `profile` go, as text at most `width` columns wide."""
    return profile_text(report_profile(profile), width=width)


def plan_timeline(plan: Plan, profile: Profile) -> MemoryTimeline:
    """Return the memory of the step in `profile` under `plan`; see `Plan.timeline`."""
    return predict_timeline(profile, plan)
