"""Frames: how the segments of a plan recompute.

`members` are the forwards that a plan puts on modules; with `thread`, what a thread knows, they let calls join a
`recording`, which makes a `frame` of `slots`. A `selection` finds the `units` inside that a replay does not run; it
remembers the `patches` by which it does.
`state` and `generators` hold what a replay puts back; by `claims`, replays in several threads wait for each
other.

What a replay cannot see, and so cannot put back: Python attributes (but tensors that were there when the plan was put
on), closures and globals that forward reads and that change meanwhile; `parameter.data` assigned meanwhile; draws from
Python's `random`, from numpy, from a generator that is neither a device's own nor an argument, or from one that the
call puts back without having seeded it (`fork_rng`); hooks on modules inside a member, which run a second time
(`is_recomputing` tells them). Where that changes which tensors are saved, the replay raises ReplayError; where it
changes their values only, nothing notices. A profile refuses calls that draw in such ways where it sees them: not those
that put back a generator which is no device's own, and in fake mode none that put one back.
"""

from __future__ import annotations

from .governed import Governor, governed_forward
from .members import Handle, Place, patched_forward
from .patches import Patches
from .thread import is_recomputing
from .units import Choice
from .watching import watching_replays

__all__ = [
    "Choice",
    "Governor",
    "Handle",
    "Patches",
    "Place",
    "governed_forward",
    "is_recomputing",
    "patched_forward",
    "watching_replays",
]
