"""Problems in, solutions out: standard library, numpy and PuLP; no torch.

Problem ──solve──▶ Solution

Every figure in a solution comes from the judge, `simulate`. A name is imported when it is first used, so that code
which only needs an error or a formatted number loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The names of _HOME again, for type checkers and editors, which do not run it; a test checks that both agree. `as`
    # marks a name as exported. Sorting or wrapping would put each name on a line of its own.
    # isort: off
    # fmt: off
    from .bound import Bound as Bound, Lives as Lives, peak_bound as peak_bound
    from .dataflow import (Dataflow as Dataflow, Decisions as Decisions, Item as Item, Unit as Unit)
    from .errors import (AutockptError as AutockptError, BackendError as BackendError, BudgetError as BudgetError,
        Infeasible as Infeasible, InvalidProblem as InvalidProblem, TooCostly as TooCostly,
        UnknownSolver as UnknownSolver)
    from .frontier import sweep as sweep
    from .judge import Timeline as Timeline, simulate as simulate
    from .lowest import least_peak as least_peak
    from .menu import make_menu as make_menu
    from .problem import (Addition as Addition, Call as Call, Candidate as Candidate, Hold as Hold, Problem as Problem,
        Save as Save, Solution as Solution, Status as Status, Step as Step, Tensor as Tensor)
    from .registry import SOLVERS as SOLVERS, solve as solve
    from .units import format_bytes as format_bytes, format_seconds as format_seconds, parse_bytes as parse_bytes
    # fmt: on

# fmt: off
_HOME = {
    "bound": ("Bound", "Lives", "peak_bound"),
    "dataflow": ("Dataflow", "Decisions", "Item", "Unit"),
    "errors": ("AutockptError", "BackendError", "BudgetError", "Infeasible", "InvalidProblem", "TooCostly",
        "UnknownSolver"),
    "frontier": ("sweep",),
    "judge": ("Timeline", "simulate"),
    "lowest": ("least_peak",),
    "menu": ("make_menu",),
    "problem": ("Addition", "Call", "Candidate", "Hold", "Problem", "Save", "Solution", "Status", "Step", "Tensor"),
    "registry": ("SOLVERS", "solve"),
    "units": ("format_bytes", "format_seconds", "parse_bytes"),
}
"""The public names, by the module that they live in."""
# fmt: on

_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    """Import the public `name` from the module it lives in, and keep it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
