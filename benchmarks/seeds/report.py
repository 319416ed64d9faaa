"""The tables, from the stored rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.environment import table
from benchmarks.seeds.products import products_table

__all__ = ["KINDS", "report"]

KINDS = ("measured", "predicted", "not asked")
FIELDS = ("source", "headline", "asked", "ours", "kind", "differs")


def report(raw: dict[str, Any]) -> str:
    """Lay out what was found: a row a headline, then what `speed` leaves."""
    return "\n\n".join(
        [headlines(raw["rows"]), "## What speed leaves", products_table(raw["products"])],
    )


def headlines(rows: Sequence[dict[str, Any]]) -> str:
    """Lay out a row for each headline."""
    cells = ([f"{row['source']} {row['year']}", *(row[field] for field in FIELDS[1:])] for row in rows)
    return table(["source", "headline", "asked here", "ours", "which", "what differs"], cells)
