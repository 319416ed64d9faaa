"""The page of a profile: where the memory and the time of one plain step go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..._data.profile import Profile, plain_peak_bytes
from ..._data.tables import Recipe
from ...solvers.units import format_bytes, format_seconds
from ..page import Bar, Page, Table, counted
from .common import MODES, RefusalRow, by_reason, caveats, how_timed
from .tree import SMALL, TreeRow, all_saves, place_of, saved_inside, walk


class ModuleRow(TreeRow, frozen=True, kw_only=True):
    """A row of the module tree.

    Attributes:
        saved_bytes: what autograd saves inside, each storage once.
        forward_seconds: children included.
    """

    saved_bytes: int
    forward_seconds: float


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where memory and time of one plain step go, as recorded, or as predicted where `mode` says so."""

    kind: Literal["profile"] = "profile"
    model: str
    mode: str
    device: str
    torch_version: str
    recorded: str
    recipe: Recipe | None
    plain_peak_bytes: int
    plain_seconds: float
    static_bytes: dict[str, int]
    optimizer: str
    optimizer_step_bytes: int
    activation_bytes: int
    modules: tuple[ModuleRow, ...]
    refused: tuple[RefusalRow, ...]
    notes: tuple[str, ...]


def report_profile(profile: Profile) -> ProfileReport:
    """Summarise `profile`: the plain peak, what is static, and the module tree with what each part saves."""
    rows = _modules(profile)
    static = profile.static
    return ProfileReport(
        model=profile.model,
        mode=profile.mode,
        device=profile.device,
        torch_version=profile.torch_version,
        recorded=profile.recorded,
        recipe=profile.recipe,
        plain_peak_bytes=plain_peak_bytes(
            static, profile.tensors, ticks=profile.ticks, optimizer_step_bytes=profile.optimizer_step_bytes
        ),
        plain_seconds=profile.plain_seconds,
        static_bytes={
            "parameters": static.parameter_bytes,
            "buffers": static.buffer_bytes,
            "inputs": static.input_bytes,
            "what else is alive": static.other_bytes,
            "gradients": static.gradient_bytes,
            "optimizer state": static.optimizer_bytes,
        },
        optimizer=profile.optimizer,
        optimizer_step_bytes=profile.optimizer_step_bytes,
        activation_bytes=rows[0].saved_bytes,
        modules=tuple(rows),
        refused=by_reason((profile.calls[call].key, reason) for call, reason in profile.refused("call").items()),
        notes=profile.notes,
    )


def _modules(profile: Profile) -> list[ModuleRow]:
    calls, sizes = profile.calls, profile.tensors.bytes
    saved = saved_inside(profile, all_saves(profile))
    rows: list[ModuleRow] = []

    def visit(group: Sequence[int], depth: int) -> bool:
        row = ModuleRow(
            **place_of(group, depth, calls),
            saved_bytes=sum(sizes[tensor] for tensor in set().union(*(saved[i] for i in group))),
            forward_seconds=sum(calls[i].forward_seconds for i in group),
        )
        rows.append(row)
        return True

    walk(calls, visit)
    return rows


def profile_page(report: ProfileReport) -> Page:
    """Lay out a report of a profile."""
    where = f"on {report.device}" if report.mode == "measured" else f"for {report.device}"
    title = f"Profile of {report.model}, recorded {report.recorded} {where}, torch {report.torch_version}"
    if report.recipe is not None:
        title += f": a step on {report.recipe.batch}, {report.recipe.precision}, {report.recipe.optimizer}"
    parts = [f"{name} {format_bytes(size)}" for name, size in report.static_bytes.items() if size]
    how = how_timed(report.mode)
    figures = [
        (f"{'predicted' if report.optimizer else how} plain peak", format_bytes(report.plain_peak_bytes), ""),
        ("of it static", format_bytes(sum(report.static_bytes.values())), ", ".join(parts)),
        (f"{how} activations", format_bytes(report.activation_bytes), "saved for backward, each storage once"),
        (f"{how} plain step", format_seconds(report.plain_seconds), ""),
        ("mode", report.mode, MODES[report.mode]),
    ]
    if report.optimizer:
        needed = format_bytes(report.optimizer_step_bytes)
        figures.insert(2, ("predicted optimizer step", needed, f"beside its state: {report.optimizer}"))
    whole = report.activation_bytes
    shown = [row for row in report.modules if not row.depth or row.saved_bytes > SMALL * whole]
    hidden = len(report.modules) - len(shown)
    tree = Table(
        title=f"Saved bytes as {how}, forward seconds as {how}",
        header=["module", "class", "calls", "saved", "share", "forward"],
        rows=[
            [
                row.label(report.model),
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
    return Page(title=title, figures=figures, blocks=[tree, *caveats(report.refused, report.notes)])
