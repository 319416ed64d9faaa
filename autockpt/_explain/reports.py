"""What a plan or a profile says, as plain data: what ``autockpt explain --json`` prints."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from .._goal import Goal
from .._plan import Plan, Segment, split_key
from .._profile import CallRecord, Profile
from .._timeline import MemoryTimeline

__all__ = [
    "SMALL",
    "ModuleRow",
    "PlanReport",
    "ProfileReport",
    "RefusalRow",
    "SegmentRow",
    "label",
    "report_plan",
    "report_profile",
]

_ANY = "*"  # stands for the number of a layer


SMALL = 0.005  # modules that save less than this share of the activations are counted, not listed


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """Segments that look alike. Figures are predicted, and those of one segment.

    Attributes:
        segments: how many.
        calls: for people: ``h.0 … h.2``; ``h.{0-3, 7}.mlp`` for several.
        calls_each: sibling calls in one segment.
        freed_bytes: activations that recomputing the segment drops.
        boundary_bytes: what must stay alive for it.
        kept_bytes: what the units that are not run again leave alive besides.
        keep: those of them whose results the replay reads, named from the segment's call on where it is one.
        skip: the others.
        recompute_seconds: mean over these segments.
    """

    segments: int
    calls: str
    calls_each: int
    freed_bytes: int
    boundary_bytes: int
    kept_bytes: int
    keep: tuple[str, ...]
    skip: tuple[str, ...]
    recompute_seconds: float


class RefusalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that are kept for the same reason."""

    reason: str
    calls: tuple[str, ...]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan does and what it is predicted to cost; its timeline where its profile is at hand."""

    kind: Literal["plan"] = "plan"
    model: str
    solver: str
    status: str
    gap: float | None
    choice_gap: float | None
    lower_bound_seconds: float | None
    profile_mode: str | None
    goal: Goal | None
    budget_bytes: int | None
    predicted_peak_bytes: int
    predicted_plain_peak_bytes: int
    predicted_recompute_seconds: float
    predicted_recompute_overhead: float
    recorded_plain_seconds: float
    pinned_keep: tuple[str, ...]
    pinned_recompute: tuple[str, ...]
    segments: tuple[SegmentRow, ...]
    timeline: MemoryTimeline | None
    refused: tuple[RefusalRow, ...]
    notes: tuple[str, ...]


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
    """Where the memory and the time of one plain step go. Everything is as recorded."""

    kind: Literal["profile"] = "profile"
    model: str
    mode: str
    times: str
    device: str
    torch_version: str
    recorded: str
    plain_peak_bytes: int
    plain_seconds: float
    static_bytes: dict[str, int]
    optimizer: str
    optimizer_step_bytes: int
    activation_bytes: int
    modules: tuple[ModuleRow, ...]
    refused: tuple[RefusalRow, ...]
    notes: tuple[str, ...]


def report_plan(plan: Plan, profile: Profile | None = None) -> PlanReport:
    """Summarise `plan`: totals, rows of segments that look alike, refusals by reason; with its profile the timeline."""
    groups: dict[tuple[object, ...], list[Segment]] = {}
    for segment in plan.segments:
        calls, _ = _without_layer(segment.calls)
        sizes = segment.freed_bytes, segment.boundary_bytes, segment.kept_bytes
        units = _units(segment, segment.keep), _units(segment, segment.skip)
        groups.setdefault((calls, *sizes, *units), []).append(segment)
    rows = [
        SegmentRow(
            segments=len(alike),
            calls=_span_of_segments(alike),
            calls_each=len(alike[0].calls),
            freed_bytes=alike[0].freed_bytes,
            boundary_bytes=alike[0].boundary_bytes,
            kept_bytes=alike[0].kept_bytes,
            keep=_units(alike[0], alike[0].keep),
            skip=_units(alike[0], alike[0].skip),
            recompute_seconds=sum(segment.recompute_seconds for segment in alike) / len(alike),
        )
        for alike in groups.values()
    ]
    return PlanReport(
        model=plan.model,
        solver=plan.solver,
        status=plan.status,
        gap=plan.gap,
        choice_gap=plan.choice_gap,
        lower_bound_seconds=plan.lower_bound_seconds,
        profile_mode=plan.profile_mode,
        goal=plan.goal,
        budget_bytes=plan.budget_bytes,
        predicted_peak_bytes=plan.peak_bytes,
        predicted_plain_peak_bytes=plan.plain_peak_bytes,
        predicted_recompute_seconds=plan.recompute_seconds,
        predicted_recompute_overhead=plan.recompute_overhead,
        recorded_plain_seconds=plan.plain_seconds,
        pinned_keep=plan.pinned_keep,
        pinned_recompute=plan.pinned_recompute,
        segments=tuple(rows),
        timeline=None if profile is None else plan.timeline(profile),
        refused=_by_reason((refusal.call, refusal.reason) for refusal in plan.refused),
        notes=plan.notes,
    )


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
                name=_span(list(dict.fromkeys(_from_parent(record, profile.calls) for record in records))),
                first=records[0].key,
                class_name=records[0].class_name,
                calls=len(calls),
                saved_bytes=sum(sizes[tensor] for tensor in set().union(*(saved[i] for i in calls))),
                forward_seconds=sum(record.forward_seconds for record in records),
            )
        )
        for group in _alike([children[i] for i in calls], profile.calls):
            add(group, depth + 1)

    add([0], 0)
    static = profile.static
    return ProfileReport(
        model=profile.model,
        mode=profile.mode,
        times=profile.times,
        device=profile.device,
        torch_version=profile.torch_version,
        recorded=profile.recorded,
        plain_peak_bytes=_plain_peak_bytes(profile),
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
        refused=_by_reason((call.key, call.refused) for call in profile.calls if call.refused),
        notes=profile.notes,
    )


def _units(segment: Segment, keys: Sequence[str]) -> tuple[str, ...]:
    """Name units for people: ``attn.c_proj``, ``attn/scaled_dot_product_attention#0``."""
    if len(segment.calls) > 1:
        return tuple(map(label, keys))
    return tuple(label(key).removeprefix(label(segment.calls[0])).removeprefix(".") for key in keys)


def _template(call: str) -> str:
    """Return the call with the numbers in its name blanked: ``h.3.mlp#0`` and ``h.4.mlp#0`` look alike."""
    return ".".join("*" if part.isdigit() else part for part in call.partition("#")[0].split("."))


def _alike(families: Sequence[Sequence[int]], calls: Sequence[CallRecord]) -> list[list[int]]:
    """Group the children of calls that look alike.

    Args:
        families: for each of the calls, its children in order. They are as many, since the calls look alike.
        calls: every call of the profile.

    Returns:
        Groups in forward order: consecutive children that look alike, over all the families.
    """

    def look(position: int) -> tuple[object, ...]:
        i = families[0][position]
        return calls[i].class_name, calls[i].signature, calls[i].stop - i, _template(calls[i].key)

    merged = []
    for _, group in itertools.groupby(range(len(families[0])), key=look):
        positions = list(group)
        merged.append([family[k] for family in families for k in positions])
    return merged


def _from_parent(call: CallRecord, calls: Sequence[CallRecord]) -> str:
    """Return the call's key, its name without that of the parent call."""
    parent = calls[call.parent].name if call.parent >= 0 else ""
    return call.key.removeprefix(f"{parent}.") if parent else call.key


def _plain_peak_bytes(profile: Profile) -> int:
    """Return the highest level of the recorded step and of the optimizer's, static bytes included."""
    change = [0] * (profile.ticks + 1)
    for size, birth, death in zip(profile.tensors.bytes, profile.tensors.birth, profile.tensors.death, strict=True):
        change[birth] += size
        change[death] -= size
    level = list(itertools.accumulate(change))
    return profile.static.total_bytes + max(*level, level[profile.ticks - 1] + profile.optimizer_step_bytes)


def _by_reason(refused: Iterable[tuple[str, str]]) -> tuple[RefusalRow, ...]:
    calls: dict[str, list[str]] = {}
    for call, reason in refused:
        calls.setdefault(reason, []).append(call)
    return tuple(RefusalRow(reason=reason, calls=tuple(names)) for reason, names in calls.items())


def label(call: str) -> str:
    """Return the call for people: the occurrence only where it is not the first, the root by name.

    Torch functions follow the call whose code calls them: ``encoder/cat#1``, or ``cat#1`` of the root.
    """
    call, function = split_key(call)
    name, _, occurrence = call.partition("#")
    if function:
        return f"{label(call)}/{function}" if name else function
    name = name or "the whole model"
    return name if occurrence == "0" else f"{name}#{occurrence}"


def _span(calls: Sequence[str]) -> str:
    """Return the calls as ``transformer.h.0 … h.2``: the first, then of the last what differs."""
    if len(calls) == 1:
        return "" if calls[0] == "#0" else label(calls[0])
    first, last = label(calls[0]).split("."), label(calls[-1]).split(".")
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    if shared and last[shared : shared + 1] and not last[shared][0].isalpha():
        shared -= 1  # a bare number says too little
    return f"{'.'.join(first)} … {'.'.join(last[shared:])}"


def _span_of_segments(segments: Sequence[Segment]) -> str:
    """Return the calls of segments that differ in the number of one layer: ``h.{0-3, 7}.ln … mlp``."""
    calls, _ = _without_layer(segments[0].calls)
    layers = [layer for _, layer in map(_without_layer, (segment.calls for segment in segments)) if layer is not None]
    return _span(calls).replace(_ANY, _ranges(layers), 1) if layers else _span(calls) or "the whole model"


def _without_layer(calls: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
    """Replace the first number in the calls' names by a placeholder, where all share it; return it too."""
    parts = [call.split(".") for call in calls]
    names = [call.partition("#")[0].split(".") for call in calls]
    at = next((i for i, part in enumerate(names[0]) if part.isdigit()), None)
    if at is None or any(name[: at + 1] != names[0][: at + 1] for name in names):
        return calls, None
    return tuple(
        ".".join([*part[:at], part[at].replace(names[0][at], _ANY, 1), *part[at + 1 :]]) for part in parts
    ), int(names[0][at])


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``3`` for one number, ``{0-3, 7}`` for several."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) + "}"
