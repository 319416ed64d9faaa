"""Frames: how the segments of a plan recompute.

    forward   routing ─▶ recording ─▶ frame of slots      who is a member, and what its replay needs
    backward  slot ─▶ frame ─▶ replayer ─▶ replay         the first that is read runs the calls again

The input is a `Table`, which tells what happens to each call. `patch` puts it on modules. The output is gradients as
in a plain step. A member is a call that is recomputed. A segment is a row of members, and a frame is one execution of a
segment. A unit is a call inside a member that the member's replay does not run.

Begin with `frame`. `slots` has what autograd holds in place of saved tensors. `unit` has what a replay does not run.
`_calls/found` has what forward finds and a replay restores, `compare` has the replayers that compare, and
`_run/parts` has those whose frames are replayed in parts.

After ``loss.backward()`` begins, no code of ours runs until a node reads a tensor that it saved:

    autograd          a node reads a saved tensor: if a member saved it, what `Pack.hook` returned in forward
    unpack            a Slot with a value returns that at once; so do an OwnedSlot, a Detached and a MovedTensor
    Slot.tensor       a Slot without a value asks its frame
    Frame.fill        takes the frame's lock
    Frame.replay      finds the last slot that is alive and empty
    Replayer.replay   makes the replay; also compares what it makes, if the frame is compared
    Replay.run        runs the calls from the first on, fills every slot that is alive and empty, stops at the last

Rules of lifetimes: why a tensor is alive after its segment's forward, and when it is freed.

1. Slots hold their frame, and the frame refers to its slots weakly. When autograd has released the last slot, the frame
   is freed at once, by reference count alone. So `loss.backward()` frees a segment before it comes to the one before.
2. A replayed value is held by its slot, and freed with it. A backward that keeps its graph (`retain_graph=True`) takes
   the value away from the slot. Another backward replays again, and between the two only the boundary is held.
3. The boundary (`Frame.boundary`; `Recording._refer` puts it there) is freed after the last replay that is needed.
4. A parameter or a buffer is held itself (`OwnedSlot`, `ModuleState`). Buffers that forward changes are copied.
   Tensors in attributes are held too, unless the plan knows that forward overwrites them unread (`spared`).
5. The frame holds the result of a kept unit (`UnitRun.tensors`). Autograd holds what the unit saved (`Detached`), but
   not views of its arguments. Of a skipped unit, only what it saved is held.
6. Nothing that is held may have a graph. A graph leads to slots, and so to the frame: a cycle that no collector sees.
   ``x = f(y); self.last = x`` inside a member would keep the whole step alive.
7. Autograd holds what is saved outside of members, as in a plain step. `Pack.hook` is not called for it.

Rules of replays: what makes a gradient right.

8. A replay runs the calls that forward ran, on what forward found: arguments, modules, generators, flags, autocast,
   modes, context variables, stream. ``model.eval()`` before backward changes nothing.
9. A replay restores what it changes, even if it is interrupted. It may run between any two operators of backward, and
   in another thread than forward. It may also run before backward, while a stage of a pipeline waits for its gradient
   (`Table.early`); the slots are full then as backward reads them. Of replays that draw from a generator of the host
   one runs at a time (`_calls/found/turns.py`): all threads share these.
10. A replay ends with the last tensor that is needed, even in the middle of a call. Nothing after that runs twice.
11. Number, node, shape, strides, dtype and device of saved tensors are always those of forward, or an error is raised.
    Tensors that were changed in place are refused. Values are compared if the frame's replayer `compares`: in the first
    frame of a segment, which is its rehearsal, and later in one segment a step.
12. Units run in the order of forward. If a replay takes another path than forward, it raises an error. It never returns
    another result.

`verify` finds the first tensor that differs, in the order of the step. Then set a breakpoint

    in Pack.hook     and clone what a member saves in forward
    in Slot.fill     and compare that with what the replay saves; for a kept unit's argument, in `Slot.fill_from`
    in Replay._run   to see which call runs, on which arguments, modules, generator states, flags and modes

A replay does not restore everything that forward reads. If what it does not restore has changed, a rehearsal finds
other values, and the calls are kept from then on. Not restored are:

* closures, globals, and the inside of objects in Python attributes (an attribute has its object of forward again)
* `parameter.data` that is assigned meanwhile
* generators, except those of devices, those among the arguments, Python's `random` and numpy's global one
* a generator that the call itself restores without having seeded it (`fork_rng`)
* what hooks on modules inside a member keep: they run a second time, unless they ask `is_recomputing`

routing.py    patched forwards: which calls are members
recording.py  a frame that is open: members still join it
pack.py       the hook that autograd calls for what a member saves
slots.py      what autograd holds in place of a saved tensor
frame.py      one execution of a segment, and the protocol `Replayer`
replay.py     one replay
plain.py      the replayer that compares nothing
table.py      what happens to each call
unit.py       what a replay does not run; units.py records it in forward, and handles it in a replay
unplanned.py  calls that no recorded step made
function.py   functions that recompute by themselves
thread.py     what a thread knows of the plans that run in it

waiting/   tensors of a segment that wait away from the device
"""
