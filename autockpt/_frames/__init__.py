"""Frames: how the segments of a plan recompute.

`members` are the forwards that a plan puts on modules; with `thread`, what a thread knows, they let calls join a
`recording`, which makes a `frame` of `slots`. `state`, `generators` and `tree` hold what a replay puts back.
"""

from __future__ import annotations

from .members import Handle, Place, patched_forward
from .thread import is_recomputing

__all__ = ["Handle", "Place", "is_recomputing", "patched_forward"]
