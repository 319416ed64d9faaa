"""Problems in, solutions out: standard library, numpy and PuLP; no torch.

Problem ──solve──▶ Solution

Every figure in a solution comes from the judge, `simulate`. A name is imported when it is first used, so that code
which only needs an error or a formatted number loads nothing else. Public names of `dataflow` are handed out here as
well; that room imports this one, and nothing here imports it before such a name is used.

registry.py   every solver by its name: open it first; names.py has the names alone
problem.py    what a solver is given and returns
judge.py      the judge: levels and seconds of a choice
columns.py    a problem as columns, for the programme and for dynamic programming
plans/        plans in an instant: by rules, and by dynamic programming
programme/    the integer programme, and its search
sweeps/       one problem under many budgets, and the lowest peak
common.py     what all solvers share: how plans are compared, and become solutions or errors
deadline.py   when a search has to end, and how far it is
pins.py       calls that a plan must recompute
errors.py     errors that users see; refusals.py has their root, for amounts and budgets
units.py      amounts as people write them
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The names of _HOME again, for type checkers and editors, which do not run it; a test checks that both agree. `as`
    # marks a name as exported. Sorting or wrapping would put each name on a line of its own.
    # isort: off
    # fmt: off
    from .._choose.dataflow.bound import Bound as Bound, Lives as Lives, peak_bound as peak_bound
    from .._choose.dataflow.dataflow import (Dataflow as Dataflow, Decisions as Decisions, Item as Item, Unit as Unit)
    from .._choose.dataflow.menu import make_menu as make_menu
    from .errors import (AutockptError as AutockptError, BackendError as BackendError, BudgetError as BudgetError,
        Infeasible as Infeasible, InvalidProblem as InvalidProblem, TooCostly as TooCostly,
        UnknownSolver as UnknownSolver)
    from .sweeps.frontier import sweep as sweep
    from .judge import Timeline as Timeline, simulate as simulate
    from .sweeps.lowest import least_peak as least_peak
    from .problem import (Addition as Addition, Call as Call, Candidate as Candidate, Hold as Hold, Problem as Problem,
        Save as Save, Solution as Solution, Status as Status, Step as Step, Tensor as Tensor)
    from .registry import SOLVERS as SOLVERS, solve as solve
    from .units import format_bytes as format_bytes, format_seconds as format_seconds, parse_bytes as parse_bytes
    # fmt: on

# fmt: off
_HOME = {
    "._choose.dataflow.bound": ("Bound", "Lives", "peak_bound"),
    "._choose.dataflow.dataflow": ("Dataflow", "Decisions", "Item", "Unit"),
    "._choose.dataflow.menu": ("make_menu",),
    "errors": ("AutockptError", "BackendError", "BudgetError", "Infeasible", "InvalidProblem", "TooCostly",
        "UnknownSolver"),
    "sweeps.frontier": ("sweep",),
    "judge": ("Timeline", "simulate"),
    "sweeps.lowest": ("least_peak",),
    "problem": ("Addition", "Call", "Candidate", "Hold", "Problem", "Save", "Solution", "Status", "Step", "Tensor"),
    "registry": ("SOLVERS", "solve"),
    "units": ("format_bytes", "format_seconds", "parse_bytes"),
}
"""The public names, by the module that they live in, which one more dot puts beside this package."""
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
