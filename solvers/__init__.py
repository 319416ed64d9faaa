"""Problems in, solutions out: standard library, numpy and PuLP; no torch.

Problem ──solve──▶ Solution

Every figure in a solution comes from the judge, `simulate`.
"""

from __future__ import annotations

from .bound import Bound, peak_bound
from .dataflow import Dataflow, Decisions, HostSeconds, Item, Unit
from .errors import (
    AutockptError,
    BackendError,
    BudgetError,
    Infeasible,
    InvalidProblem,
    TooCostly,
    UnknownSolver,
)
from .least import least_peak
from .lives import Lives
from .menu import make_menu
from .problem import Addition, Call, Candidate, Hold, Problem, Save, Solution, Status, Step, Tensor
from .registry import SOLVERS, solve
from .simulate import Timeline, simulate
from .sweep import sweep
from .units import format_bytes, format_seconds, parse_bytes

__all__ = [
    "SOLVERS",
    "Addition",
    "AutockptError",
    "BackendError",
    "Bound",
    "BudgetError",
    "Call",
    "Candidate",
    "Dataflow",
    "Decisions",
    "Hold",
    "HostSeconds",
    "Infeasible",
    "InvalidProblem",
    "Item",
    "Lives",
    "Problem",
    "Save",
    "Solution",
    "Status",
    "Step",
    "Tensor",
    "Timeline",
    "TooCostly",
    "Unit",
    "UnknownSolver",
    "format_bytes",
    "format_seconds",
    "least_peak",
    "make_menu",
    "parse_bytes",
    "peak_bound",
    "simulate",
    "solve",
    "sweep",
]
