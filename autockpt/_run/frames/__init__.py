"""Frames: how the segments of a plan recompute.

    forward   routing ─▶ recording ─▶ frame of slots      who is a member, and what its replay needs
    backward  slot ─▶ frame ─▶ replay                     the first that is read runs the calls again

In: a `Table` (what becomes of which call), put on modules by `install`. Out: gradients as in a plain step. Begin with
`frame`; `saved` has what stands for a tensor, `state` and `around` what a replay puts back, `leaves` what it leaves
alone.

What a replay cannot see, and so cannot put back: closures, globals and the inside of Python attributes (one that is
assigned is as forward found it) that forward reads and that change meanwhile; `parameter.data` assigned meanwhile;
draws from Python's `random`, from numpy, from a generator that is neither a device's own nor an argument, or from one
that the call puts back without having seeded it (`fork_rng`); hooks on modules inside a member, which run a second time
(`is_recomputing` tells them; else what they keep is the replay's). Where that changes which tensors are saved, the
replay raises ReplayError; where it changes their values only, nothing notices. A profile refuses calls that draw in
such ways where it sees them: not those that put back a generator which is no device's own, and in fake mode none that
put one back.
"""

from __future__ import annotations

from .frame import watching_replays as watching_replays
from .routing import Governor as Governor
from .routing import governed_forward as governed_forward
from .routing import patched_forward as patched_forward
from .thread import Buffers as Buffers
from .thread import Handle as Handle
from .thread import Place as Place
from .thread import Table as Table
from .thread import is_recomputing as is_recomputing
