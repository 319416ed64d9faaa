"""What a call finds as its forward begins, held so that its replay finds the same.

held.py         tensors that come from outside, and whether they are as they were
state.py        the call's modules: attributes, parameters, buffers, children and hooks
doubles.py      copies of modules for a replay, where something is not as it was
spared.py       attributes whose tensors no replay reads; hollow.py is what stands there then
around.py       generators, casts and the stream
host_generators.py  Python's generator and numpy's
context.py      context variables, and the lists and dictionaries in them
reference.py    modules that are not kept alive
"""

from __future__ import annotations
