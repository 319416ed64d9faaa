"""Frames: how the segments of a plan recompute.

    thread     scopes and replays of the running thread
    members    the forwards that a plan puts on modules
    recording  a frame in the making
    frame      slots, boundary, replay
    state      what a forward finds around it          generators  random numbers          tree  containers by value
"""

from __future__ import annotations

from .members import Handle, Place, patched_forward
from .thread import is_recomputing

__all__ = ["Handle", "Place", "is_recomputing", "patched_forward"]
