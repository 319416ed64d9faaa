"""Parts that several pages share: refusals, notes, where figures come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..._data.frontier import Frontier
from ..._data.hardware.paces import ONE_CLOCK
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.step.world import World
from ..._data.text.keys import label
from ...solvers.units import format_seconds
from ..page import Page, counted

MODES = {
    "measured": "a step ran",
    "fake": "nothing ran; memory and seconds are predicted for the device",
}

WAYS = {
    "fsdp2": "FSDP2",
    "dtensor": "tensor parallelism",
    "ddp": "DistributedDataParallel",
    "whole": "the whole model on each",
}

FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of torch that take `fused=True`."""

_NAMED = 6  # calls named for each reason; the rest are counted


def first_within(pages: Iterable[Page], most_lines: int) -> Page:
    """Return the first page that has at most so many lines of a short page, or else the last page."""
    page = Page(blocks=[])
    for page in pages:
        if page.brief().count("\n") <= most_lines:
            break
    return page


def shared_by(world: World) -> str:
    """Say of which ranks a step is one's."""
    return f"one rank of {world.ranks} ({WAYS[world.way]})"


def by_reason(refused: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Group refused calls by reason, as JSON has them."""
    calls: dict[str, list[str]] = {}
    for call, reason in refused:
        calls.setdefault(reason, []).append(call)
    return [{"reason": reason, "calls": names} for reason, names in calls.items()]


def caveats(refused: Sequence[dict[str, Any]], notes: Sequence[str]) -> Iterator[str]:
    """Yield the last blocks of a page: the calls that cannot be replayed exactly, by reason, and the notes."""
    if refused:
        lines = ["Kept because they cannot be replayed exactly"]
        for row in refused:
            named, number = [label(call) for call in row["calls"][:_NAMED]], len(row["calls"])
            more = [f"and {number - _NAMED} more"] if number > _NAMED else []
            lines += [f"  {counted(number, 'call')}: {row['reason']}", f"    {', '.join([*named, *more])}"]
        yield "\n".join(lines)
    if notes:
        yield listed("Notes", notes)


def listed(title: str, lines: Iterable[str]) -> str:
    """Return a title with indented lines below it."""
    return "\n".join([title, *(f"  {line}" for line in lines)])


def budget_of(plan: Plan) -> object:
    """Return the budget that a plan was made for, as the user wrote it; None if there is none."""
    return plan.goal.budget if plan.goal is not None else None


def how_timed(profile_mode: str | None) -> str:
    """Say where the seconds of a plain step come from."""
    return "predicted" if profile_mode == "fake" else "recorded"


def rate(frontier: Frontier, plan: Plan) -> str:
    """Write the samples a second of a plan; ``-`` where they are not known."""
    return rated(frontier.samples_per_second(plan))


def rated(samples_per_second: float | None) -> str:
    """Write samples a second; ``-`` where they are not known."""
    if samples_per_second is None:
        return "-"
    return f"{samples_per_second:.3g}" if samples_per_second < 1000 else f"{samples_per_second:.0f}"


def pace(plan: Plan) -> str:
    """Say which clock sets the pace of a planned step, and for how much of it; empty for a step with one clock."""
    if plan.host_pace_seconds is None:
        return ""
    return paced(plan.host_pace_seconds, plan.plain_seconds + plan.recompute_seconds)


def whose_host(measured: bool, profile: Profile | None = None) -> str:
    """Say where the host's seconds come from, and why not from the step, if that is known."""
    if measured:
        return "the host's seconds were measured beside the device's"
    why = profile.host.discarded if profile is not None and profile.host is not None else ""
    return "the host's seconds are assumed as on one H100" + (f": {why}" if why else "")


def paced(host_seconds: float, step_seconds: float) -> str:
    """Say whether the host sets the pace of a step in so many of its seconds, or the device."""
    host_seconds = min(host_seconds, step_seconds)
    who, most = max(("host", host_seconds), ("device", step_seconds - host_seconds), key=lambda each: each[1])
    return f"the {who} sets the pace: {format_seconds(most)} of {format_seconds(step_seconds)}"


def why_one_clock(plan: Plan, profile: Profile) -> str:
    """Say why a device's step is not simulated with its host; empty where it is, or where it has no device."""
    if plan.host_pace_seconds is not None or profile.device in ONE_CLOCK:
        return ""
    if profile.host is not None and profile.host.alone:
        return f"the device's alone: {profile.host.alone}"
    other = "ranks wait for each other" if profile.is_shared else "other streams may copy beside it"
    return f"the device's alone: {other}"


def optimizer_step(profile: Profile, in_unit: Callable[[int], str]) -> Iterator[tuple[str, str, str]]:
    """Yield rows of label, figure and note: what the optimizer's step allocates.

    If it allocates anything, a second row has the level that it reaches, and its note that level with ``fused=True``.
    """
    if profile.optimizer:
        needed = in_unit(profile.optimizer_step_bytes)
        yield "predicted optimizer step", needed, f"beside its state: {profile.optimizer}"
    if not profile.optimizer_step_bytes:
        return
    said = "which no plan changes"
    if profile.optimizer.partition(",")[0] in FUSED:
        without = in_unit(profile.optimizer_peak_bytes - profile.optimizer_step_bytes)
        said += f"; with fused=True, other kernels that need nothing beside their tensors, it is {without}"
    yield "predicted peak of it", in_unit(profile.optimizer_peak_bytes), said
