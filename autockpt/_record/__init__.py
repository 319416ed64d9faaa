"""Recording: from a model and a batch to a profile.

recorder.py   which runs are made, and what the profile takes from each
runs.py       those runs, and what each says of the step
timing.py     forwards and steps of their own, for the seconds
again.py      a step of another size, from what operators do in a known one
fingerprint.py  what tells whether forward changed an object that is no tensor
calibrate.py  what recomputing costs the host
step.py       the training step that is recorded
loss.py       a loss that nobody has told
sandbox.py    leaving no trace
contents.py   what Python objects held, put back in place
tape.py       allocations, frees and markers of a run, in order
routing.py    standing around forwards, torch functions and operators
watch.py      calls, functions and saves of a run, as markers
spill.py      where saves wait that must not be held
spilled_tape.py  from the tape of a step whose saves waited there to that of the plain step
clocks.py     time without waiting for the device
structure.py  what calls do: random numbers, mutations, of a forward of its own
refusals.py   why some calls cannot be replayed
buffers.py    which buffers calls change
dataflow.py   what functions and operators read and make in that forward
functions.py  the functions of the step, and who saved what
operators.py  the operators of that forward, named by the tensors of the step
synthesis.py  a backward made from the autograd graph, where none can run
convolutions.py  what the kernels of convolutions take in backward, tried one by one
fake.py       clock and model where nothing runs
storages.py   a tape of storages, for tensors without memory
shadow.py     a step of an optimizer that changes and computes nothing
optimizer.py  which optimizer is meant, what it holds and what its step needs
assemble.py   from tapes to the tables of a profile
"""

from __future__ import annotations

from .recorder import profile

__all__ = ["profile"]
