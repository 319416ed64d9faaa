"""What a call's forward finds when it begins. It is held, so that the replay finds the same.

held.py         tensors from outside, and whether they have changed since
state.py        the call's modules: attributes, parameters, buffers, children and hooks
tree.py         those modules, and whether they are still as they were found
reached.py      what a function closes over, and the modules that its code reaches
numbers.py      numbers and words at the objects that it reaches
doubles.py      copies of modules for a replay, if something has changed since
tags.py         Python attributes of parameters and buffers
spared.py       attributes whose tensors no replay reads
hollow.py       tensors without values, which take the place of tensors that no replay reads
around.py       generators, autocast, flags, modes and the stream
turns.py        replays in several threads that draw from generators of the host
host_generators.py  Python's generator and numpy's
context.py      context variables, and the lists and dictionaries in them
reference.py    references that do not keep modules alive
"""

from __future__ import annotations
