"""Which rows of a module tree pictures show, and what they are called there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["TreeRow", "row_name", "up_to"]

MOST_ROWS = 30


class TreeRow(Protocol):
    """Module calls at one place of the tree."""

    @property
    def depth(self) -> int:
        """0 for the root."""

    @property
    def name(self) -> str:
        """For people, from the parent on; empty for the root."""


Row = TypeVar("Row", bound=TreeRow)


def up_to(rows: Sequence[Row], most: int = MOST_ROWS) -> Sequence[Row]:
    """Return as many levels of a tree as there is room for, at least the root and what it calls."""
    depth = max(row.depth for row in rows)
    while depth > 1 and len(rows) > most:
        depth -= 1
        rows = [row for row in rows if row.depth <= depth]
    return rows


def row_name(row: TreeRow, model: str) -> str:
    """Name a row, indented by its depth."""
    return "\u2003" * row.depth + (row.name or model)
