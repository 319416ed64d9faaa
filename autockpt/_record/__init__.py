"""Recording: from a model and a batch to a profile.

    a step ── `_watch` ──▶ Written ── attribute.py ──▶ SeenStep ── `_tables` ──▶ tables ── recorded.py ──▶ Profile

recorder.py     `profile`: what runs, and what becomes of it
step.py         the training step that is recorded
loss.py         a loss that nobody has told
sandbox.py      leaving no trace
timing.py       forwards and steps of their own, for the seconds
host_times.py   what a device's host takes in a step
host_speed.py   how slow this machine's host is
in_place.py     a user's own step, written down
runs.py         a step of our own, written down
recorded.py     what was recorded, and its profile
attribute.py    what is written down, and whose bytes each storage is
timed.py        a user's own step, timed
alive.py        what is there before a step
fake.py         clock and model where nothing runs
switches.py     switches of transformers' models that work against a plan
own_replays.py  what a model recomputes itself

`_watch` puts down what a step does. `_device` has the tape of an allocator and clocks. `_calls`
has what Python objects held. In `_stash` saved tensors wait.
"""

from __future__ import annotations

from .recorder import profile

__all__ = ["profile"]
