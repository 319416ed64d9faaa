"""From what was seen of a step to the tables of its profile: what lives from when until when, and who reads it.

    SeenStep ── lifetimes.py ──▶ Lifetimes ── flow.py, attributes.py, refusals.py, tables.py ──▶ tables

lifetimes.py    from the tape to births and deaths in the plain step
flow.py         what calls, functions and operators read, make and change
copies.py       what calls were given that other ranks may have the same
attributes.py   what calls find at attributes of modules
refusals.py     why calls and functions cannot be replayed
whole.py        which units of FSDP2 were gathered when
passes.py       backward passes after the first, and what they read again
seconds.py      when the places of a step were passed
tables.py       the tables of the profile
"""

from __future__ import annotations
