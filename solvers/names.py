"""The names of the solvers in `registry.py`, for help texts: importing those takes numpy, this nothing."""

from __future__ import annotations

NAMES = ("all", "articulation", "auto", "block", "chain", "ilp", "none", "speed", "sqrt", "uniform")
