"""Frames: how the segments of a plan recompute.

    forward   routing ─▶ recording ─▶ frame of slots      who is a member, and what its replay needs
    backward  slot ─▶ frame ─▶ replayer ─▶ replay         the first that is read runs the calls again

In: a `Table` (what becomes of which call), put on modules by `_install`. Out: gradients as in a plain step. A member is
a call that is recomputed; a frame is one execution of a segment, which is a row of members; a unit is a call inside a
member that its replay does not run. Begin with `frame`; `slots` have what stands for a tensor, `unit`
what a replay leaves alone. `_found` has what forward found and a replay puts back, `_compare` the replayers that
compare, and `_nested` those of frames that go in parts.

From ``loss.backward()`` to the first replay nothing of ours runs until a node asks for a tensor that it saved:

    autograd          a node reads what it saved; for a tensor of a member that is what `Pack.hook` returned in forward
    unpack            an OwnedSlot or a Detached gives its tensor at once; a Slot with a value gives that
    Slot.tensor       a Slot without a value asks its frame
    Frame.fill        takes the frame's lock
    Frame.replay      finds the last slot that is alive and empty
    Replayer.replay   makes the replay, and compares what it makes where it is to
    Replay.run        runs the calls from the first on, fills every such slot, stops at the last

Rules of lifetimes: why a tensor is alive after the forward of its segment, and when it dies.

1. Slots hold their frame, and the frame knows its slots weakly. When autograd has released the last slot, the frame
   dies at once, by reference count alone: `loss.backward()` frees a segment before it comes to the one before.
2. A replayed value lives on its slot and dies with it. A backward that keeps its graph (`retain_graph=True`) takes it
   away from the slot: another backward replays again, and between the two only the boundary is held.
3. The boundary (`Frame.boundary`; `Recording._refer` puts it there) goes with the last replay that can be asked for.
4. A parameter or a buffer is held as itself (`OwnedSlot`, `ModuleState`); buffers that forward changes are copied.
   What stands at an attribute is held too, unless the plan knows that forward overwrites it unread (`spared`).
5. Of a kept unit its result is held (`UnitRun.tensors`), and by autograd what it saved (`Detached`); of a skipped one
   the second alone.
6. Nothing that is held may have a graph: that leads to slots, and so to the frame, a cycle that no collector sees.
   ``x = f(y); self.last = x`` inside a member would keep the whole step.
7. What is saved outside of members autograd holds, as in a plain step: `Pack.hook` was not asked.

Rules of replays: what makes a gradient right.

8. A replay runs the calls that forward ran, on what forward found: arguments, modules, generators, flags, autocast,
   modes, context variables, stream. ``model.eval()`` before backward changes nothing.
9. What it changes it puts back, also where it is interrupted: it may run between any two operators of backward, in
   another thread than forward.
10. It ends with the last tensor that is asked for, also in the midst of a call: nothing behind that runs twice.
11. Number, node, shape, strides, dtype and device of what is saved are always those of forward, or there is an error;
    tensors that were changed in place are refused. Values are compared where the frame's replayer `compares`: in a
    rehearsal, which a segment's first frame is, and in one segment a step.
12. Units come in the order of forward. Where forward took another way, there is an error and no other result.

`verify` finds the first tensor that differs, in the order of the step. Then break

    in Pack.hook     and clone what a member saves in forward
    in Slot.fill     and compare it with what the replay saves; a kept unit's argument comes by `Slot.fill_from`
    in Replay._run   to see which call runs, on which arguments, modules, generator states, flags and modes

What a replay does not put back: closures, globals and the inside of Python attributes (one that is assigned is as
forward found it) that forward reads and that change meanwhile; `parameter.data` assigned meanwhile; generators in them,
but for torch's; one that the call puts back without having seeded it (`fork_rng`); hooks on modules inside a member,
which run a second time (`is_recomputing` tells them; else what they keep is the replay's). A rehearsal finds out, and
the calls are kept from then on.

routing.py    patched forwards: who is a member
recording.py  a frame in the making
pack.py       what autograd is handed in the place of what a member saves
slots.py      what stands for a tensor
frame.py      one execution of a segment, and the protocol `Replayer`
replay.py     one replay
away.py       units of FSDP2 in a replay of several calls
plain.py      the replayer that compares nothing
table.py      what becomes of which call
unit.py       what a replay leaves alone; units.py records it in forward, and meets it in a replay
unplanned.py  calls that no recorded step made
moved.py      tensors that wait off the device
thread.py     what a thread knows of the plans that run in it
"""
