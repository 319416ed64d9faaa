"""The page of a profile: where the memory and the time of one plain step go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..._data.profile import Profile, plain_peak_bytes
from ..._data.tables import Recipe
from ...solvers.units import format_bytes, format_seconds
from .layout import DEFAULT_WIDTH, MINIMUM_WIDTH, MODES, counted, fill, format_notes, format_table, format_totals
from .names import alike, from_parent, span
from .refusals import RefusalRow, by_reason, format_refusals

SMALL = 0.005  # modules that save less than this share of the activations are counted, not listed


class ModuleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Module calls at one place of the tree, structurally identical siblings together. Figures are their sum.

    Attributes:
        depth: 0 for the root.
        name: for people, from the parent on: ``h.0 … h.11``; empty for the root.
        first: the first of the calls, by its key.
        class_name: class of the module.
        calls: how many calls the row stands for.
        saved_bytes: what autograd saves inside, each storage once.
        forward_seconds: children included.
    """

    depth: int
    name: str
    first: str
    class_name: str
    calls: int
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
    saved: list[set[int]] = [set() for _ in profile.calls]
    for tensor, call in zip(profile.saves.tensor, profile.saves.call, strict=True):
        if tensor >= 0:
            saved[call].add(tensor)
    children: list[list[int]] = [[] for _ in profile.calls]
    for i in range(len(profile.calls) - 1, 0, -1):  # children come after their parents in pre-order
        parent = profile.calls[i].parent
        saved[parent] |= saved[i]
        children[parent].insert(0, i)

    sizes = profile.tensors.bytes
    activation_bytes = sum(sizes[tensor] for tensor in saved[0])
    rows: list[ModuleRow] = []

    def add(calls: Sequence[int], depth: int) -> None:
        """Append the row of `calls`, which look alike, then those of their children."""
        records = [profile.calls[i] for i in calls]
        rows.append(
            ModuleRow(
                depth=depth,
                name=span(list(dict.fromkeys(from_parent(record, profile.calls) for record in records))),
                first=records[0].key,
                class_name=records[0].class_name,
                calls=len(calls),
                saved_bytes=sum(sizes[tensor] for tensor in set().union(*(saved[i] for i in calls))),
                forward_seconds=sum(record.forward_seconds for record in records),
            )
        )
        for group in alike([children[i] for i in calls], profile.calls):
            add(group, depth + 1)

    add([0], 0)
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
        activation_bytes=activation_bytes,
        modules=tuple(rows),
        refused=by_reason((profile.calls[call].key, reason) for call, reason in profile.refused("call").items()),
        notes=profile.notes,
    )


def how_known(report: ProfileReport) -> tuple[str, str, str]:
    """Say of the plain peak, of saved bytes and of seconds whether they are recorded or predicted."""
    return (
        "recorded" if report.mode == "measured" and not report.optimizer else "predicted",
        "predicted" if report.mode == "fake" else "recorded",
        "predicted" if report.mode == "fake" else "recorded",
    )


def profile_text(report: ProfileReport, *, width: int = DEFAULT_WIDTH) -> str:
    """Render a report of a profile."""
    width = max(width, MINIMUM_WIDTH)
    where = f"on {report.device}" if report.mode == "measured" else f"for {report.device}"
    head = f"Profile of {report.model}, recorded {report.recorded} {where}, torch {report.torch_version}"
    if report.recipe is not None:
        head += f": a step on {report.recipe.batch}, {report.recipe.precision}, {report.recipe.optimizer}"
    parts = [f"{name} {format_bytes(size)}" for name, size in report.static_bytes.items() if size]
    peak, saved, times = how_known(report)
    totals = [
        (f"{peak} plain peak", format_bytes(report.plain_peak_bytes), ""),
        ("of it static", format_bytes(sum(report.static_bytes.values())), ", ".join(parts)),
        (f"{saved} activations", format_bytes(report.activation_bytes), "saved for backward, each storage once"),
        (f"{times} plain step", format_seconds(report.plain_seconds), ""),
        ("mode", report.mode, MODES[report.mode]),
    ]
    if report.optimizer:
        needed = format_bytes(report.optimizer_step_bytes)
        totals.insert(2, ("predicted optimizer step", needed, f"beside its state: {report.optimizer}"))
    blocks = [fill(head, width), format_totals(totals, width)]

    table = []
    hidden = 0
    floor = report.activation_bytes * SMALL
    for row in report.modules:
        if row.depth and row.saved_bytes <= floor:
            hidden += 1
            continue
        share = f"{row.saved_bytes / report.activation_bytes:.0%}" if report.activation_bytes else ""
        name = "  " * row.depth + (row.name or report.model)
        seconds = format_seconds(row.forward_seconds)
        table.append([name, row.class_name, str(row.calls), format_bytes(row.saved_bytes), share, seconds])
    tree = fill(f"Saved bytes as {saved}, forward seconds as {times}", width) + "\n"
    header = ["module", "class", "calls", "saved", "share", "forward"]
    if sum(max(map(len, column)) + 2 for column in zip(header, *table, strict=True)) - 2 > width:
        header, *table = ([cells[0], *cells[2:]] for cells in (header, *table))  # names say more than classes
    tree += format_table(header, table, width, elide=0)
    if hidden:
        tree += "\n" + fill(f"Left out: {counted(hidden, 'row')} of modules that save less than {SMALL:.1%}", width)
    blocks.append(tree)
    return "\n\n".join([*blocks, *format_refusals(report.refused, width), *format_notes(report.notes, width)]) + "\n"
