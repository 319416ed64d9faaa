"""Verifying: the plain step against the planned step, bit for bit.

A model, its batch and a plan come in, a `Verification` goes out. Open `run.py` first, then `outcome.py`.

asked.py     what `verify` is asked to run
replays.py   which call differs, and whether the plan is to blame
figures.py   peaks and seconds of the plain and the planned step
compiled.py  the same for a model that was compiled as a whole
report.py    what was found, as plain data
"""

from __future__ import annotations

from .report import Difference, Verification
from .run import verify

__all__ = ["Difference", "Verification", "verify"]
