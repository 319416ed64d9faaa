"""Profiles at sizes that nobody recorded, from two that were. No torch.

structure.py   whether two profiles are of one structure, and where they part
laws.py        how bytes and seconds grow from one size to another
growth.py      a whole profile at another size
search.py      the largest size that fits a budget, as predicted
recordings.py  which sizes are recorded for that
"""

from __future__ import annotations

from .growth import Growth, shared_out
from .laws import HIGHEST_POWER
from .structure import same_structure

__all__ = ["HIGHEST_POWER", "Growth", "same_structure", "shared_out"]
