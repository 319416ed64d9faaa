"""Train a PyTorch model inside a memory budget.

``autockpt.apply(model, budget="8GiB")`` measures what the model keeps for backward and what each piece costs
to run again, chooses the cheapest set of pieces to recompute, and makes exactly those pieces recompute.

This module only says where each public name lives; a name is imported when it is first used, so that solving
and explaining recorded profiles never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # _HOME once more, for type checkers and editors, which do not run it; a test holds that both agree. `as` says that
    # a name is handed on, and sorting would give each of them a line of its own.
    # isort: off
    from ._check.fits import fit as fit
    from ._check.measure import Measurement as Measurement, measure as measure
    from ._check.verify import Verification as Verification, verify as verify
    from ._choose.frontier import frontier as frontier
    from ._choose.solve import solve as solve
    from ._data.errors import (
        GrowthError as GrowthError,
        InvalidFile as InvalidFile,
        MissingExtra as MissingExtra,
        NotApplicable as NotApplicable,
        PinError as PinError,
        ProfilingError as ProfilingError,
        ReplayError as ReplayError,
        UnknownProfile as UnknownProfile,
    )
    from ._data.frontier import Frontier as Frontier
    from ._data.goal import Goal as Goal
    from ._data.offload import Offload as Offload
    from ._data.compiled_plan import CompiledPlan as CompiledPlan
    from ._data.plan import Plan as Plan, Refusal as Refusal, Segment as Segment
    from ._data.profile import Profile as Profile
    from ._data.timeline import MemoryStep as MemoryStep, MemoryTimeline as MemoryTimeline, PeakParts as PeakParts
    from ._record.one_rank import profile as profile
    from ._train.apply import apply as apply, plan_of as plan_of, remove as remove
    from ._train.messages.report import Report as Report, report as report
    from ._fit.fit import Fits as Fits
    from ._run.frames.thread import is_recomputing as is_recomputing
    from ._run.patch.recompute import recompute as recompute
    from ._check.max_batch import MaxBatch as MaxBatch, max_batch as max_batch
    from .solvers.errors import (
        AutockptError as AutockptError,
        BudgetError as BudgetError,
        Infeasible as Infeasible,
        InvalidProblem as InvalidProblem,
        TooCostly as TooCostly,
        UnknownSolver as UnknownSolver,
    )

__version__ = "0.1.0"

_HOME = {
    "_check.fits": ("fit",),
    "_check.measure": ("Measurement", "measure"),
    "_check.verify": ("Verification", "verify"),
    "_choose.frontier": ("frontier",),
    "_choose.solve": ("solve",),
    "_data.errors": (
        "GrowthError",
        "InvalidFile",
        "MissingExtra",
        "NotApplicable",
        "PinError",
        "ProfilingError",
        "ReplayError",
        "UnknownProfile",
    ),
    "_data.frontier": ("Frontier",),
    "_data.goal": ("Goal",),
    "_data.offload": ("Offload",),
    "_data.compiled_plan": ("CompiledPlan",),
    "_data.plan": ("Plan", "Refusal", "Segment"),
    "_data.profile": ("Profile",),
    "_data.timeline": ("MemoryStep", "MemoryTimeline", "PeakParts"),
    "_record.one_rank": ("profile",),
    "_train.apply": ("apply", "plan_of", "remove"),
    "_train.messages.report": ("Report", "report"),
    "_fit.fit": ("Fits",),
    "_run.frames.thread": ("is_recomputing",),
    "_run.patch.recompute": ("recompute",),
    "_check.max_batch": ("MaxBatch", "max_batch"),
    "solvers.errors": (
        "AutockptError",
        "BudgetError",
        "Infeasible",
        "InvalidProblem",
        "TooCostly",
        "UnknownSolver",
    ),
}
"""The public names, by the module that they live in."""

_DOORS = {
    "apply",
    "fit",
    "frontier",
    "max_batch",
    "measure",
    "plan_of",
    "profile",
    "remove",
    "report",
    "solve",
    "verify",
}
"""Functions whose errors come out without the frames inside."""

_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_MODULE_OF, "__version__"])


def __getattr__(name: str) -> object:
    """Import the public `name` from the module it lives in, and keep it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: Any = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ._data.errors import MissingExtra

        raise MissingExtra(
            f"autockpt.{name} takes torch, which is not installed; install it by: pip install torch"
        ) from None
    if name in _DOORS:
        from ._data.text.door import door

        value = door(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
