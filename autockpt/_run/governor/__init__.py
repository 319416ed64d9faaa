"""Holding a model to a budget, step by step.

decision.py   what is decided as a step begins, and by which table
governor.py   what follows from it
step.py       the step that is under way
lessons.py    what follows from one that is over
ways.py       what watches a step that runs under no plan, and where it waits

Beside it: plans.py has the kinds of steps that were recorded, and plans for them; batch.py says what a kind is.
"""

from __future__ import annotations

from .governor import Governor

__all__ = ["Governor"]
