"""Problems in, solutions out: standard library, numpy and PuLP; no torch.

Problem ──solve──▶ Solution

Every figure in a solution comes from the judge, `simulate`.
"""

from __future__ import annotations

from .errors import AutockptError, BudgetError, Infeasible, InvalidProblem, ProblemTooLarge, UnknownSolver
from .problem import Addition, Call, Candidate, Hold, Problem, Save, Solution, Status, Step, Tensor
from .registry import SOLVERS, solve
from .simulate import Timeline, simulate
from .units import format_bytes, format_seconds, parse_bytes

__all__ = [
    "SOLVERS",
    "Addition",
    "AutockptError",
    "BudgetError",
    "Call",
    "Candidate",
    "Hold",
    "Infeasible",
    "InvalidProblem",
    "Problem",
    "ProblemTooLarge",
    "Save",
    "Solution",
    "Status",
    "Step",
    "Tensor",
    "Timeline",
    "UnknownSolver",
    "format_bytes",
    "format_seconds",
    "parse_bytes",
    "simulate",
    "solve",
]
