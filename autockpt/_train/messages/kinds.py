"""What kinds of segments are called, in the lines and on the page of a plan: in parts, again inside, moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ..._data.cuts import depth_of
from ..._data.offload import Moved
from ..._data.plan import Plan, levels_of
from ...solvers.units import format_like

LEVELS = (
    "Where there are several levels, recomputing goes on inside recomputing: in backward the calls run again without "
    "saving anything but what their parts begin with, and then part by part, from the last to the first. What is "
    "recomputed again inside a call saves nothing as that runs again: it runs once more when backward comes to it."
)

WAITING: Mapping[Moved, tuple[str, str, str]] = {
    "saved": ("what it saves", "what 1 call saves", "what {} calls save"),
    "boundary": ("its boundary", "1 boundary", "{} boundaries"),
}
"""What waits of a segment, as a table says it beside the segment's name; of one segment; of several."""


def kinds_in_words(plan: Plan) -> Iterator[str]:
    """Yield a phrase for each way in which a plan recomputes at more than one level."""
    cut = [segment for segment in plan.segments if segment.cuts]
    if cut:
        runs = "1 run" if len(cut) == 1 else f"{len(cut)} runs"
        yield f"{runs} of calls in parts, up to {max(depth_of(segment.cuts) for segment in cut)} levels deep"
    around = [segment for segment in plan.segments if segment.inner]
    if around:
        calls = sum(
            any(each.calls[0].startswith(f"{call.rpartition('#')[0]}.") for each in segment.inner)
            for segment in around
            for call in segment.calls
        )
        inside = "1 call" if calls == 1 else f"{calls} calls"
        yield f"again inside {inside}, up to {max(map(levels_of, around))} levels deep"


def moved_in_words(plan: Plan) -> str:
    """Say what a plan moves off the device, and to where; empty if it moves nothing."""
    moving = [segment for segment in plan.segments if segment.offload]
    found = Counter(segment.offload for segment in moving)
    if not found:
        return ""
    counted = ((found[each], one, several) for each, (_, one, several) in WAITING.items() if each in found)
    what = ", ".join(one if number == 1 else several.format(number) for number, one, several in counted)
    n_bytes = sum(segment.moved_bytes for segment in moving)
    size = f"{format_like(n_bytes, plan.goal.budget if plan.goal else None)} " if n_bytes else ""
    if plan.offload is not None and plan.offload.is_shard:
        return f"and {size}left to other ranks: parts of {what}"
    place = "host" if plan.offload is None or plan.offload.is_host else plan.offload.where
    return f"and {size}moved to {place}: {what}"
