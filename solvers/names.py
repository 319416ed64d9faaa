"""The names of the solvers in `registry.py`, for help texts: importing those takes numpy, and this does not."""

from __future__ import annotations

import difflib
import re

from .errors import UnknownSolver
from .units import shown

NAMES = (
    *("all", "always", "articulation", "auto", "block", "chain", "except_last"),
    *("ilp", "never", "none", "speed", "sqrt", "uniform"),
)

COUNTED = ("block", "uniform")
"""Those that may be told a number of layers: ``uniform:4``."""


def counted(name: object) -> tuple[str, int]:
    """Split the name of a solver that is told a number of layers: ``uniform:4``.

    Raises:
        UnknownSolver: there is no such solver; says what to write instead.
    """
    solver, colon, number = name.partition(":") if isinstance(name, str) else ("", "", "")
    if colon and solver in COUNTED and re.fullmatch(r"[1-9][0-9]{0,5}", number, re.ASCII):
        return solver, int(number)
    if colon and solver in COUNTED:
        raise UnknownSolver(
            f"solver {shown(name)} is told {shown(number)} layers; give a whole number from 1 to 999999: "
            f"'{solver}:4', or {solver!r}, which tries all"
        )
    if colon and solver in NAMES:
        raise UnknownSolver(f"solver {solver!r} takes no number, and {shown(name)} has one; write {solver!r}")
    near = difflib.get_close_matches(solver, NAMES, n=1)
    meant = f"{near[0]}:{number}" if near and colon and near[0] in COUNTED and number else "".join(near)
    hint = f"did you mean {meant!r}? " if near else ""
    raise UnknownSolver(
        f"no solver is called {shown(name)}; {hint}there are {', '.join(NAMES)}, and "
        f"{' and '.join(f'{each}:N' for each in COUNTED)} for N layers"
    )
