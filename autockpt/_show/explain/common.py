"""What several pages say: refusals, notes, where figures come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..._data.keys import label
from ..page import counted

MODES = {
    "measured": "a step ran",
    "fake": "nothing ran; memory and seconds are predicted for the device",
}

_NAMED = 6  # calls named for each reason; the rest are counted


class RefusalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that are kept for the same reason."""

    reason: str
    calls: tuple[str, ...]


def by_reason(refused: Iterable[tuple[str, str]]) -> tuple[RefusalRow, ...]:
    """Collect refused calls, each with its reason."""
    calls: dict[str, list[str]] = {}
    for call, reason in refused:
        calls.setdefault(reason, []).append(call)
    return tuple(RefusalRow(reason=reason, calls=tuple(names)) for reason, names in calls.items())


def caveats(refused: Sequence[RefusalRow], notes: Sequence[str]) -> Iterator[str]:
    """Yield the last blocks of a page: calls that cannot be replayed exactly, by reason, and notes."""
    if refused:
        lines = ["Kept because they cannot be replayed exactly"]
        for row in refused:
            named = [label(call) for call in row.calls[:_NAMED]]
            more = [f"and {len(row.calls) - _NAMED} more"] if len(row.calls) > _NAMED else []
            lines += [f"  {counted(len(row.calls), 'call')}: {row.reason}", f"    {', '.join([*named, *more])}"]
        yield "\n".join(lines)
    if notes:
        yield listed("Notes", notes)


def listed(title: str, lines: Iterable[str]) -> str:
    """Return a title with indented lines below it."""
    return "\n".join([title, *(f"  {line}" for line in lines)])


def how_timed(profile_mode: str | None) -> str:
    """Say where the seconds of a plain step come from."""
    return "predicted" if profile_mode == "fake" else "recorded"
