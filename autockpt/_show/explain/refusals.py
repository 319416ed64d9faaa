"""Calls that are kept because they cannot be replayed exactly, by reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..._data.keys import label
from .layout import counted, fill

_NAMED = 6  # calls named for each reason; the rest are counted


class RefusalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that are kept for the same reason."""

    reason: str
    calls: tuple[str, ...]


def by_reason(refused: Iterable[tuple[str, str]]) -> tuple[RefusalRow, ...]:
    calls: dict[str, list[str]] = {}
    for call, reason in refused:
        calls.setdefault(reason, []).append(call)
    return tuple(RefusalRow(reason=reason, calls=tuple(names)) for reason, names in calls.items())


def format_refusals(refused: Sequence[RefusalRow], width: int) -> list[str]:
    if not refused:
        return []
    lines = ["Kept because they cannot be replayed exactly"]
    for row in refused:
        lines.append(fill(f"{counted(len(row.calls), 'call')}: {row.reason}", width, indent="  "))
        more = [f"and {len(row.calls) - _NAMED} more"] if len(row.calls) > _NAMED else []
        named = [label(call) for call in row.calls[:_NAMED]]
        lines.append(fill(", ".join([*named, *more]), width, indent="    "))
    return ["\n".join(lines)]
