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
    from ._check.measure import Measurement, measure
    from ._check.verify import Verification, verify
    from ._choose.frontier import frontier
    from ._choose.peak_breakdown import PeakParts
    from ._choose.solve import solve
    from ._data.errors import (
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
    from ._data.frontier import Frontier
    from ._data.goal import Goal
    from ._data.plan import Plan, Refusal, Segment
    from ._data.profile import Profile
    from ._data.timeline import MemoryStep, MemoryTimeline
    from ._record import profile
    from ._run.apply import apply, plan_of, remove
    from ._run.frames import is_recomputing
    from ._run.max_batch import MaxBatch, max_batch

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
    "AutockptError": "_data.errors",
    "BudgetError": "_data.errors",
    "Frontier": "_data.frontier",
    "Goal": "_data.goal",
    "GrowthError": "_data.errors",
    "Infeasible": "_data.errors",
    "InvalidFile": "_data.errors",
    "InvalidProblem": "_data.errors",
    "MaxBatch": "_run.max_batch",
    "Measurement": "_check.measure",
    "MemoryStep": "_data.timeline",
    "MemoryTimeline": "_data.timeline",
    "MissingExtra": "_data.errors",
    "NotApplicable": "_data.errors",
    "PeakParts": "_choose.peak_breakdown",
    "PinError": "_data.errors",
    "Plan": "_data.plan",
    "Profile": "_data.profile",
    "ProfilingError": "_data.errors",
    "Refusal": "_data.plan",
    "ReplayError": "_data.errors",
    "Segment": "_data.plan",
    "TooCostly": "_data.errors",
    "UnknownProfile": "_data.errors",
    "UnknownSolver": "_data.errors",
    "Verification": "_check.verify",
    "apply": "_run.apply",
    "frontier": "_choose.frontier",
    "is_recomputing": "_run.frames",
    "max_batch": "_run.max_batch",
    "measure": "_check.measure",
    "plan_of": "_run.apply",
    "profile": "_record",
    "remove": "_run.apply",
    "solve": "_choose.solve",
    "verify": "_check.verify",
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
