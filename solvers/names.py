"""What the solvers of `registry.py` are called, for help texts: importing them takes numpy, and this nothing."""

from __future__ import annotations

NAMES = ("all", "articulation", "auto", "block", "chain", "ilp", "none", "speed", "sqrt", "uniform")
