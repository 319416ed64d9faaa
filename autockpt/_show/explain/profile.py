"""The page of a profile: where the memory and the time of one plain step go."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from ..._choose.candidates.from_plan import find_planned
from ..._choose.predict.timeline import predict_timeline
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.timeline import PARTS
from ...solvers.units import format_bytes, format_seconds
from ..page import Bar, Page, PageTable, counted
from .chart import timeline_chart
from .common import MODES, by_reason, caveats, how_timed, optimizer_step, shared_by
from .tree import SMALL, TreeRow, saved_inside, walk


class ModuleRow(TreeRow, frozen=True, kw_only=True):
    """A row of the module tree.

    Attributes:
        saved_bytes: bytes that autograd saves inside these calls, each storage once.
        forward_seconds: seconds of forward, children included.
    """

    saved_bytes: int
    forward_seconds: float


def profile_page(profile: Profile) -> Page:
    """Lay out a profile: the plain peak, what is static, and the module tree with what each part saves."""
    calls, sizes, saved = profile.calls, profile.tensors.bytes, saved_inside(profile, once=False)
    rows = [
        ModuleRow(
            **place,
            saved_bytes=sum(sizes[tensor] for tensor in set().union(*(saved[i] for i in group))),
            forward_seconds=sum(calls[i].forward_seconds for i in group),
        )
        for group, place in walk(calls)
    ]
    whole = rows[0].saved_bytes
    refused = by_reason((profile.calls[call].key, reason) for call, reason in profile.refused("call").items())
    chart = functools.partial(timeline_chart, predict_timeline(profile, Plan()))
    same = ("model", "mode", "device", "torch_version", "recorded", "recipe")
    return Page(
        title=_title(profile),
        figures=list(_figures(profile, whole)),
        blocks=[chart, _tree(rows, profile.model, how_timed(profile.mode)), *caveats(refused, profile.notes)],
        document={
            "kind": "profile",
            **{name: getattr(profile, name) for name in same},
            "plain_peak_bytes": profile.plain_peak_bytes,
            "plain_seconds": profile.plain_seconds,
            "static_bytes": _static(profile),
            "optimizer": profile.optimizer,
            "optimizer_step_bytes": profile.optimizer_step_bytes,
            "activation_bytes": whole,
            "modules": rows,
            "refused": refused,
            **({} if profile.world is None else {"ranks": profile.world.ranks, "way": profile.world.way}),
            "notes": profile.notes,
        },
    )


def _title(profile: Profile) -> str:
    where = f"on {profile.device}" if profile.mode == "measured" else f"for {profile.device}"
    title = f"Profile of {profile.model}, recorded {profile.recorded} {where}, torch {profile.torch_version}"
    if profile.recipe is not None:
        title += f": a step on {profile.recipe.batch}, {profile.recipe.precision}, {profile.recipe.optimizer}"
    return title if profile.world is None else f"{title}: {shared_by(profile.world)}"


def _static(profile: Profile) -> dict[str, int]:
    """Return the static bytes of a step, by the name of each part in words."""
    return {PARTS[name]: getattr(profile.static, name) for name in profile.static.__struct_fields__}


def _figures(profile: Profile, activation_bytes: int) -> Iterator[tuple[str, str, str]]:
    how, peak = how_timed(profile.mode), format_bytes(profile.plain_peak_bytes)
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in _static(profile).items() if size)
    yield f"{'predicted' if profile.optimizer else how} plain peak", peak, ""
    yield "of it static", format_bytes(profile.static.total_bytes), named
    yield from optimizer_step(profile, format_bytes)
    yield f"{how} activations", format_bytes(activation_bytes), "saved for backward, each storage once"
    on_both = find_planned(profile, Plan()).plain_seconds
    beside = "" if on_both == profile.plain_seconds else f"the device's alone; {format_seconds(on_both)} with its host"
    yield f"{how} plain step", format_seconds(profile.plain_seconds), beside
    yield "mode", profile.mode, MODES[profile.mode]


def _tree(rows: Sequence[ModuleRow], model: str, how: str) -> PageTable:
    whole = rows[0].saved_bytes
    shown = [row for row in rows if not row.depth or row.saved_bytes > SMALL * whole]
    hidden = len(rows) - len(shown)
    return PageTable(
        title=f"Saved bytes as {how}, forward seconds as {how}",
        header=["module", "class", "calls", "saved", "share", "forward"],
        rows=[
            [
                row.label(model),
                row.class_name,
                str(row.calls),
                Bar(format_bytes(row.saved_bytes), row.saved_bytes / (whole or 1)),
                f"{row.saved_bytes / whole:.0%}" if whole else "",
                format_seconds(row.forward_seconds),
            ]
            for row in shown
        ],
        below=f"Left out: {counted(hidden, 'row')} of modules that save less than {SMALL:.1%}" if hidden else "",
        least_told=["class"],  # names say more than classes
    )
