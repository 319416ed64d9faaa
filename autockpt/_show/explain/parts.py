"""What the lowest peak that can be reached consists of, as text."""

from __future__ import annotations

from ..._data.timeline import PeakParts
from ...solvers.units import format_bytes
from .layout import DEFAULT_WIDTH, MINIMUM_WIDTH, fill, format_totals


def parts_text(parts: PeakParts, budget_bytes: int, *, width: int = DEFAULT_WIDTH) -> str:
    """Render what the lowest peak that can be reached consists of, beside the budget that it is above."""
    width = max(width, MINIMUM_WIDTH)
    missing = f"{format_bytes(parts.peak_bytes - budget_bytes)} above the budget of {format_bytes(budget_bytes)}"
    totals = [(name, format_bytes(size), f"{size / parts.peak_bytes:>4.0%}") for name, size in parts.named() if size]
    where = f"It stands at: {parts.step}"
    where += f", in {parts.op}" if parts.op else ""
    where += f"; most of what is restored belongs to {parts.segment}" if parts.segment else ""
    head = format_totals([("predicted minimum", format_bytes(parts.peak_bytes), missing)], width)
    return "\n\n".join([head, fill(where, width), format_totals(totals, width)]) + "\n"
