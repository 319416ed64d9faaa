"""Verifying: the plain step against the planned step, bit for bit.

A model, its batch and a plan come in, a `Verification` goes out. Open `run.py` first, then `outcome.py`.
"""

from __future__ import annotations

from .report import Difference, Verification
from .run import verify

__all__ = ["Difference", "Verification", "verify"]
