"""State in a file of its own: other files' functions lead there."""

from __future__ import annotations

__all__ = ["counted", "number", "put"]

_counts: dict[object, int] = {}
number = 0


def counted(key: object) -> int:
    return _counts.get(key, 0)


def put(key: object, count: int) -> None:
    global number
    _counts[key] = count
    number += 1
