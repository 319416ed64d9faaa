"""Recording: from a model and a batch to a profile.

    a step ── watch/ ──▶ Written ── written/ ──▶ SeenStep ── tables/ ──▶ tables ── written/ ──▶ Profile

recorder.py     `profile`: what runs, and what becomes of it
step.py         the training step that is recorded
loss.py         a loss that nobody has told
in_place.py     a user's own step, written down
runs.py         a step of our own, written down
alive.py        what is there before a step
fake.py         clock and model where nothing runs

`_torch/devices` has the tape of an allocator and clocks. `_calls`
has what Python objects held. In `_stash` saved tensors wait.

seconds/   what a step takes: stamps of the recorded step, of others, and of the host
aside/   what is set aside while a step is recorded, and what cannot be
written/   what was written down of a step, and whose bytes it is
watch/       puts down what a step does: calls, functions and saves as marks on the tape
tables/      what was seen of a step, as the tables of its profile
optimizers/  what optimizers hold and when they step, without running them
one_rank/    one rank of several that are not there
"""

from __future__ import annotations

from .recorder import profile

__all__ = ["profile"]
