"""The pages of plans, frontiers, profiles and results, and the JSON that ``autockpt explain --json`` prints.

A report is plain data; a page is made from it alone, so that JSON, text and HTML say the same.
"""

from __future__ import annotations

from ..._choose.timeline import predict_timeline
from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.timeline import MemoryTimeline
from ..page import DEFAULT_WIDTH, Page
from .frontier import FrontierReport as FrontierReport
from .frontier import frontier_page as frontier_page
from .frontier import report_frontier as report_frontier
from .plan import PlanReport as PlanReport
from .plan import plan_page as plan_page
from .plan import report_plan as report_plan
from .profile import ProfileReport as ProfileReport
from .profile import profile_page as profile_page
from .profile import report_profile as report_profile
from .results import RecordedReport as RecordedReport
from .results import demo_text as demo_text
from .results import max_batch_page as max_batch_page
from .results import parts_text as parts_text
from .results import recorded_text as recorded_text
from .verification import headline as headline
from .verification import verification_page as verification_page
from .verification import verification_text as verification_text


def page_of_plan(plan: Plan, profile: Profile | None = None) -> Page:
    """Return the page of `plan`; given its profile, with a chart and with what is decided about each call."""
    return plan_page(report_plan(plan, profile))


def page_of_frontier(frontier: Frontier) -> Page:
    """Return the page of `frontier`."""
    return frontier_page(report_frontier(frontier))


def page_of_profile(profile: Profile) -> Page:
    """Return the page of `profile`."""
    return profile_page(report_profile(profile))


def explain_plan(plan: Plan, profile: Profile | None = None, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `page_of_plan` as text at most `width` columns wide."""
    return page_of_plan(plan, profile).text(width)


def explain_frontier(frontier: Frontier, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `page_of_frontier` as text at most `width` columns wide."""
    return page_of_frontier(frontier).text(width)


def explain_profile(profile: Profile, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `page_of_profile` as text at most `width` columns wide."""
    return page_of_profile(profile).text(width)


def plan_timeline(plan: Plan, profile: Profile) -> MemoryTimeline:
    """Return the memory of the step in `profile` under `plan`; see `Plan.timeline`."""
    return predict_timeline(profile, plan)
