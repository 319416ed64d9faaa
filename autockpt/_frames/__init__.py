"""Frames: how the segments of a plan recompute.

    forward   routing ─▶ recording ─▶ frame of slots      who is a member, and what its replay needs
    backward  slot ─▶ frame ─▶ replay                     the first that is read runs the calls again

In: a `Table` (what becomes of which call), put on modules by `install`. Out: gradients as in a plain step. Begin with
`frame`; `saved` has what stands for a tensor, `state` and `around` what a replay puts back, `leaves` what it leaves
alone. A member is a call that is recomputed; a frame is one execution of a segment, which is a row of members.

From ``loss.backward()`` to the first replay nothing of ours runs until a node asks for a tensor that it saved:

    autograd        a node reads what it saved; for a tensor of a member that is what `Pack.hook` returned in forward
    unpack          an OwnedSlot or a Detached gives its tensor at once; a Slot with a value gives that
    Slot.tensor     a Slot without a value asks its frame
    Frame.fill      takes the frame's lock
    Frame.replay    finds the last slot that is alive and empty
    Replay.run      the replay: runs the calls from the first on, fills every such slot, stops at the last

Why a tensor is alive after the forward of its segment:

    of the boundary              `Frame.boundary`; `Recording._refer` puts it there
    a parameter or a buffer      `OwnedSlot`, and `ModuleState`, which also has copies of buffers that forward changes
    a kept leaf's                its result: `Leaf.tensors`; what it saved: a `Detached` that autograd holds
    saved outside of members     autograd holds it, as in a plain step: `Pack.hook` was not asked
    a result                     the caller's code holds it

What a gradient that is wrong comes from: the replay ran another computation than forward did. Number, node, shape,
strides, dtype and device of what is saved are compared always, and tensors that were changed in place are refused.
Values are compared where the frame's `trial` says so: in a `rehearsal`, which a segment's first frame is, and in one
segment a step. `verify` finds the first tensor that differs, in the order of the step. Then break

    in Pack.hook     and clone what a member saves in forward
    in Slot.fill     and compare it with what the replay saves; a kept leaf's argument comes by `Slot.fill_from`
    in Replay._run   to see which call runs, on which arguments, modules, generator states, flags and modes

What a replay does not put back: closures, globals and the inside of Python attributes (one that is assigned is as
forward found it) that forward reads and that change meanwhile; `parameter.data` assigned meanwhile; generators in them,
but for torch's; one that the call puts back without having seeded it (`fork_rng`); hooks on modules inside a member,
which run a second time (`is_recomputing` tells them; else what they keep is the replay's). A rehearsal finds out, and
`nets` has the calls kept from then on.
"""

from __future__ import annotations

from .frame import watching_replays as watching_replays
from .nets import Checking as Checking
from .nets import Nets as Nets
from .routing import Governor as Governor
from .routing import governed_forward as governed_forward
from .routing import patched_forward as patched_forward
from .strangers import Strangers as Strangers
from .thread import Buffers as Buffers
from .thread import Handle as Handle
from .thread import Place as Place
from .thread import Table as Table
from .thread import Wanted as Wanted
from .thread import is_recomputing as is_recomputing
