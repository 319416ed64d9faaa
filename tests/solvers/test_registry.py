from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import autockpt.solvers
from autockpt.solvers import SOLVERS, BudgetError, UnknownSolver, solve
from tests.doors import SOLVER_NAMES

from .synthetic import transformer

PROBLEM = transformer(1)


def test_the_public_names_exist_once_each() -> None:
    names = autockpt.solvers.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(autockpt.solvers, name) for name in names)


def test_help_texts_know_the_solvers() -> None:
    assert sorted(SOLVERS) == list(SOLVER_NAMES)


def test_an_unknown_solver_is_named_with_the_nearest_and_all_others() -> None:
    with pytest.raises(UnknownSolver, match="did you mean 'articulation'") as caught:
        solve(PROBLEM, 10**9, solver="articulatoin")
    assert all(name in str(caught.value) for name in SOLVERS)
    with pytest.raises(UnknownSolver) as caught:
        solve(PROBLEM, 10**9, solver="zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("budget", [0, -5, True, 1e9, "8GB", None])
def test_a_budget_is_a_positive_int(budget: object) -> None:
    with pytest.raises(BudgetError, match="positive number of bytes"):
        solve(PROBLEM, budget)  # type: ignore[arg-type]


def test_importing_the_solvers_imports_neither_torch_nor_pulp() -> None:
    code = (
        "import sys, autockpt.solvers;"
        "bad = {'torch', 'pulp', 'highspy', 'transformers'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_examples_in_docstrings_run() -> None:
    names = [module.name for module in pkgutil.iter_modules(autockpt.solvers.__path__, "autockpt.solvers.")]
    assert [name for name in names if doctest.testmod(importlib.import_module(name)).failed] == []


def test_the_first_solve_keeps_nothing_of_its_caller_alive() -> None:
    """PuLP's import keeps tracebacks; in the caller's thread they would hold the caller's model for ever."""
    program = """
import gc, weakref
from autockpt.solvers import simulate, solve
from tests.solvers.synthetic import transformer

class Held: pass

def caller():
    held = Held()
    problem = transformer(2)
    solve(problem, simulate(problem, ()).peak_bytes * 4 // 5, solver="ilp")
    return weakref.ref(held)

reference = caller()
gc.collect()
assert reference() is None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
