"""Makes the tables of a profile from what was seen of a step: when tensors are allocated, read and freed.

    SeenStep ── lifetimes.py ──▶ Lifetimes ── flow.py, attributes.py, refusals.py, tables.py ──▶ tables

lifetimes.py    when storages are allocated and freed in the plain step, from the tape
flow.py         what calls, functions and operators read, make and change
copies.py       checksums of arguments that may be the same on other ranks
attributes.py   what calls find at attributes of modules
refusals.py     why calls and functions cannot be replayed
whole.py        when the units of FSDP2 were gathered
passes.py       backward passes after the first, and what they read again
host.py         what the host of a device took, call by call
seconds.py      the times at which a step reached its markers
tables.py       the tables of the profile
"""

from __future__ import annotations
