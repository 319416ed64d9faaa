"""Recording: from a model and a batch to a profile.

    a step ── `_watch` ──▶ SeenStep ── `_tables` ──▶ tables ── build.py ──▶ Profile

recorder.py     `profile`: what runs, and what becomes of it
build.py        what was seen of a step, as a profile
step.py         the training step that is recorded
loss.py         a loss that nobody has told
sandbox.py      leaving no trace
runs.py         the watched step
timing.py       forwards and steps of their own, for the seconds
host_times.py   what a device's host takes in a step
host_speed.py   how slow this machine's host is
in_place.py     a user's own step, recorded; recorded.py is what it was, excerpt.py finds what of the tape is of it
timed.py        a user's own step, timed
prelude.py      what a loop makes before it calls the model
alive.py        what is alive of a class, found while other threads run
fake.py         clock and model where nothing runs
left_over.py    fake tensors that a user's own code keeps
switches.py     switches of transformers' models that work against a plan
own_replays.py  what a model recomputes itself

`_watch` puts down what a step does. `_device` has the tape of an allocator and clocks. `_calls`
has what Python objects held. In `_stash` saved tensors wait.
"""

from __future__ import annotations

from .recorder import profile

__all__ = ["profile"]
