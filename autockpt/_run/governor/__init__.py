"""Holding a model to a budget, step by step: plans are made when a step needs one, before it runs.

request.py       what the user asked for
governor.py      which plan is right for the step that begins
batch.py         what a batch looks like
surroundings.py  what is alive beside the step
foresight.py     steps on batches that were never recorded
searched.py      what may be recomputed, searched once for sizes near each other
gauge.py         what the first steps really need
"""

from __future__ import annotations

from .governor import Governor
from .request import Request

__all__ = ["Governor", "Request"]
