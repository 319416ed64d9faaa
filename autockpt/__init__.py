"""Train a PyTorch model inside a memory budget.

``autockpt.apply(model, budget="8GiB")`` measures what the model keeps for backward and what each piece costs
to run again, chooses the cheapest set of pieces to recompute, and makes exactly those pieces recompute.

This module only says where each public name lives; a name is imported when it is first used, so that solving
and explaining recorded profiles never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._apply import apply, plan_of, remove
    from ._errors import (
        AutockptError,
        BudgetError,
        GrowthError,
        Infeasible,
        InvalidFile,
        InvalidProblem,
        MissingExtra,
        NotApplicable,
        PinError,
        ProfilingError,
        ReplayError,
        TooCostly,
        UnknownProfile,
        UnknownSolver,
    )
    from ._frames import is_recomputing
    from ._frontier import Frontier, frontier
    from ._goal import Goal
    from ._max_batch import MaxBatch, max_batch
    from ._measure import Measurement, measure
    from ._parts import PeakParts
    from ._plan import Plan, Refusal, Segment
    from ._profile import Profile
    from ._record import profile
    from ._solve import solve
    from ._timeline import MemoryStep, MemoryTimeline
    from ._verify import Verification, verify

__version__ = "0.1.0"

__all__ = [
    "AutockptError",
    "BudgetError",
    "Frontier",
    "Goal",
    "GrowthError",
    "Infeasible",
    "InvalidFile",
    "InvalidProblem",
    "MaxBatch",
    "Measurement",
    "MemoryStep",
    "MemoryTimeline",
    "MissingExtra",
    "NotApplicable",
    "PeakParts",
    "PinError",
    "Plan",
    "Profile",
    "ProfilingError",
    "Refusal",
    "ReplayError",
    "Segment",
    "TooCostly",
    "UnknownProfile",
    "UnknownSolver",
    "Verification",
    "__version__",
    "apply",
    "frontier",
    "is_recomputing",
    "max_batch",
    "measure",
    "plan_of",
    "profile",
    "remove",
    "solve",
    "verify",
]

_HOME = {
    "AutockptError": "_errors",
    "BudgetError": "_errors",
    "Frontier": "_frontier",
    "Goal": "_goal",
    "GrowthError": "_errors",
    "Infeasible": "_errors",
    "InvalidFile": "_errors",
    "InvalidProblem": "_errors",
    "MaxBatch": "_max_batch",
    "Measurement": "_measure",
    "MemoryStep": "_timeline",
    "MemoryTimeline": "_timeline",
    "MissingExtra": "_errors",
    "NotApplicable": "_errors",
    "PeakParts": "_parts",
    "PinError": "_errors",
    "Plan": "_plan",
    "Profile": "_profile",
    "ProfilingError": "_errors",
    "Refusal": "_plan",
    "ReplayError": "_errors",
    "Segment": "_plan",
    "TooCostly": "_errors",
    "UnknownProfile": "_errors",
    "UnknownSolver": "_errors",
    "Verification": "_verify",
    "apply": "_apply",
    "frontier": "_frontier",
    "is_recomputing": "_frames",
    "max_batch": "_max_batch",
    "measure": "_measure",
    "plan_of": "_apply",
    "profile": "_record",
    "remove": "_apply",
    "solve": "_solve",
    "verify": "_verify",
}


def __getattr__(name: str) -> object:
    """Import the public `name` from the module it lives in, and keep it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
