"""Who solves programmes: HiGHS where it is installed, else CBC, both through PuLP. Nothing else imports PuLP.

    programme ──ask──▶ HiGHS ──raises, or breaks the programme──▶ CBC ──▶ nobody: simple solvers alone

No answer is trusted: one is taken only if its values keep to the rows, and nothing that a judged plan contradicts.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from .errors import BackendError

T = TypeVar("T")

Backend = Literal["highs", "cbc"]

TOLERANCE = 1e-3
"""By how much an answer may break a row. All programmes are scaled to 1000, and solvers keep to 1e-6."""

CBC_SHARE = 0.7
"""CBC looks at its clock between cuts, which may take a second: give it this share of the time."""

EARLY = 0.5 * CBC_SHARE
"""Share of its time before which a backend that ends without an answer has failed: no clock stopped it."""

CBC_DIGIT = 1e-3
"""Last digit of the bound in CBC's log."""

CBC_BOUND = re.compile(r"^Lower bound:\s+(\S+)$", re.MULTILINE)


def pulp_module() -> Any:
    """Import PuLP where no frame of the caller's can be caught.

    Some of its modules keep the exceptions that they caught while they were imported, with the tracebacks, and so
    every frame that was then on the stack of the thread: a model and its batch would live as long as the process.
    """
    if "pulp" not in sys.modules:
        thread = threading.Thread(target=importlib.import_module, args=("pulp",))
        thread.start()
        thread.join()
    return importlib.import_module("pulp")


@dataclass(slots=True, kw_only=True)
class Backends:
    """Those that may be asked, best first; one that fails is asked no more.

    Attributes:
        left: those that have not failed.
        notes: a sentence for each that has.
    """

    left: list[Backend]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, backend: Backend | None = None) -> Backends:
        """Take one by name, or all that are installed."""
        return cls(left=[backend] if backend else _installed())

    def ask(self, question: Callable[[Backend], T]) -> T | None:
        """Put a question to the best of them, and where it fails to the next; None where nobody is left."""
        while self.left:
            try:
                return question(self.left[0])
            except BackendError as error:
                del self.left[0]
                then = f"{_name(self.left[0])} was asked instead" if self.left else "there is no other to ask"
                self.notes.append(f"{error}; {then}")
        return None


def run(
    lp: Any,
    backend: Backend,
    *,
    time_limit_seconds: float,
    whole: bool = True,
    near: float = 0.0,
) -> float | None:
    """Let a backend solve a PuLP problem, which is scaled to 1000.

    Args:
        lp: a `pulp.LpProblem` that is to be minimised; values and status are written into it.
        backend: who solves it.
        time_limit_seconds: then it stops; it may take a little longer.
        whole: integer programme; otherwise its linear relaxation.
        near: share of the goal within which an integer programme counts as solved.

    Returns:
        The bound of an integer search that ended early, None if there is none.

    Raises:
        BackendError: it raised, it could not be run, its values break the problem, or it gave up with time left.
    """
    pulp = pulp_module()
    limit = max(time_limit_seconds, 0.01)
    began = time.perf_counter()
    try:
        if backend == "highs":
            lp.solve(pulp.HiGHS(mip=whole, msg=False, gapRel=near, timeLimit=limit))
            bound = float(lp.solverModel.getInfo().mip_dual_bound) if whole else math.inf
        else:
            bound = _run_cbc(pulp, lp, limit, whole, near)
        # A relaxation that ran out of time has values that nobody asks for, and that need not keep to the rows.
        partly = whole and lp.sol_status == pulp.LpSolutionIntegerFeasible
        answered = partly or lp.sol_status == pulp.LpSolutionOptimal
        goal = float(pulp.value(lp.objective)) if answered else math.inf
        # Values that are no numbers break the rows they stand in.
        broken = answered and not (math.isfinite(goal) and lp.valid(TOLERANCE))
    except Exception as error:  # whatever comes out of a foreign library or a broken installation
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise BackendError(f"{_name(backend)} failed ({said})") from error
    # No programme of ours is unbounded: no cost, and no level, is below zero.
    silent = not answered and lp.sol_status != pulp.LpSolutionInfeasible
    if silent and time.perf_counter() - began < EARLY * limit:
        raise nonsense(backend, f"no answer, long before its {limit:.3g} seconds were up")
    if broken:
        raise nonsense(backend, "values that break the programme it was given")
    if not math.isfinite(bound):
        return None
    if bound > goal + TOLERANCE * max(abs(goal), 1.0):
        raise nonsense(backend, f"a bound of {bound:g} above its own solution of {goal:g}")
    return bound


def nonsense(backend: Backend, what: str) -> BackendError:
    """Make the error that says what a backend answered that cannot be."""
    return BackendError(f"{_name(backend)} answered nonsense ({what})")


def _run_cbc(pulp: Any, lp: Any, limit_seconds: float, whole: bool, near: float) -> float:
    """Run CBC; returns the bound that it tells to its log only, infinite if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "cbc.log")
        # PULP_CBC_CMD warns that it is deprecated; this is the same binary.
        path = pulp.PULP_CBC_CMD.pulp_cbc_path
        limit = CBC_SHARE * limit_seconds
        lp.solve(pulp.COIN_CMD(path=path, mip=whole, msg=False, gapRel=near, timeLimit=limit, logPath=str(log)))
        said = CBC_BOUND.search(log.read_text()) if whole else None
    return float(said[1]) - CBC_DIGIT if said else math.inf


def _installed() -> list[Backend]:
    """HiGHS if ``highspy`` can be imported, and CBC if PuLP has one for this machine."""
    pulp = pulp_module()
    found: list[Backend] = []
    if pulp.HiGHS(msg=False).available():
        found.append("highs")
    if pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path).available():
        found.append("cbc")
    return found


def _name(backend: Backend) -> str:
    return {"highs": "HiGHS", "cbc": "CBC"}[backend]
