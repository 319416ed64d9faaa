"""Verifying: the plain step against the planned step, bit for bit.

run.py      which runs are made, from which state, and what they prove
outcome.py  what a step makes and changes, and two outcomes held against one another
replays.py  what replays make, against what forward dropped
figures.py  peaks and seconds
report.py   what was found, as data
"""

from __future__ import annotations

from .report import Difference, Verification
from .run import verify

__all__ = ["Difference", "Verification", "verify"]
