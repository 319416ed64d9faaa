"""What is public: names, commands, options; and what importing them must not import."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

import autockpt.solvers
from tests.cli.shell import VERBS, verb
from tests.doors import HOMES

NAMES = {
    "AutockptError",
    "BudgetError",
    "Fits",
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
    "Offload",
    "CompiledPlan",
    "Plan",
    "Profile",
    "ProfilingError",
    "Refusal",
    "ReplayError",
    "Report",
    "Segment",
    "TooCostly",
    "UnknownProfile",
    "UnknownSolver",
    "Verification",
    "__version__",
    "apply",
    "fit",
    "frontier",
    "is_recomputing",
    "max_batch",
    "measure",
    "plan_of",
    "profile",
    "recompute",
    "remove",
    "report",
    "solve",
    "verify",
}

COMMANDS = {
    "demo": {"--json"},
    "doctor": {"--json"},
    "explain": {
        *("SOURCE", "--budget", "--max-overhead", "--solver", "--seconds", "--profile", "--plot", "--json"),
        *("-v", "--verbose", "--mode", "--device", "--optimizer", "--ranks", "--shard"),
    },
    "fit": {
        *("SOURCE", "--gpu", "--samples", "--batch", "--optimizer", "--offload", "--ranks", "--shard", "--json"),
        *("-v", "--verbose"),
    },
    "frontier": {
        *("SOURCE", "--solver", "--points", "--budget", "--seconds", "-o", "--output", "--plot", "-v", "--verbose"),
        *("--json", "--mode", "--device", "--optimizer", "--offload", "--ranks", "--shard"),
    },
    "profile": {
        *("TARGET", "--mode", "--device", "--outputs-freed", "--optimizer", "--ranks", "--shard"),
        *("-o", "--output", "-v", "--verbose", "--json"),
    },
    "profiles": {"--json"},
    "solve": {
        "SOURCE",
        "--budget",
        "--max-overhead",
        "--solver",
        "--keep",
        "--recompute",
        "--offload",
        "--seconds",
        "--mode",
        "--device",
        "--optimizer",
        "--ranks",
        "--shard",
        "-o",
        "--output",
        "-v",
        "--verbose",
        "--json",
    },
    "verify": {
        "TARGET",
        "--plan",
        "--budget",
        "--max-overhead",
        "--steps",
        "--solver",
        "--optimizer",
        "--keep",
        "--recompute",
        "--json",
    },
}


def test_all_is_sorted_and_complete() -> None:
    assert autockpt.__all__ == sorted(NAMES)
    assert set(dir(autockpt)) >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_every_name_is_found_and_called_what_it_is_called(name: str) -> None:
    found = getattr(autockpt, name)
    assert found.__name__ == name
    assert found.__doc__


@pytest.mark.parametrize("package", [autockpt, autockpt.solvers])
def test_type_checkers_are_told_the_names_that_are_found(package: ModuleType) -> None:
    """What stands under TYPE_CHECKING, against what runs."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.level]
    told = {"." * (node.level - 1) + (node.module or ""): node.names for node in imports}
    assert len(told) == len(block.body)
    assert {module: tuple(alias.name for alias in aliases) for module, aliases in told.items()} == package._HOME
    assert all(alias.name == alias.asname for aliases in told.values() for alias in aliases)
    assert set(package.__all__) - {"__version__"} == {name for names in package._HOME.values() for name in names}


def test_no_public_name_of_the_solvers_is_that_of_a_module() -> None:
    """Python would put the module in its place once that is imported."""
    modules = {module.name for module in pkgutil.iter_modules(autockpt.solvers.__path__)}
    assert not modules & set(autockpt.solvers.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'checkpoint'"):
        autockpt.checkpoint  # noqa: B018


def test_errors_are_one_tree() -> None:
    public = {name: getattr(autockpt, name) for name in NAMES}
    errors = {name for name, value in public.items() if isinstance(value, type) and issubclass(value, Exception)}
    assert errors == {*HOMES["_data.errors"], *HOMES["solvers.errors"]}
    assert all(issubclass(public[name], autockpt.AutockptError) for name in errors)
    assert issubclass(autockpt.AutockptError, ValueError)


def test_commands_and_options() -> None:
    found = {name: set(_parameters(verb(name))) for name in VERBS}
    assert found == COMMANDS


def _parameters(command: click.Command) -> list[str]:
    return [
        name
        for parameter in command.params
        for name in (parameter.opts if isinstance(parameter, click.Option) else [parameter.human_readable_name])
    ]


@pytest.mark.parametrize(
    "code",
    [
        "import autockpt, autockpt.solvers",
        "from autockpt import Frontier, Plan, Profile, Segment, AutockptError, frontier, solve",
        "from autockpt import Plan; Plan.of(['h.0', ['h.1', 'h.2']]).explain()",
        "from autockpt import Plan; Plan.of(['h.0'])._repr_html_()",
        f"import autockpt._cli.verbs.{', autockpt._cli.verbs.'.join(VERBS)}",
        "import autockpt._check.fitting",
    ],
)
def test_neither_torch_nor_matplotlib_is_imported(code: str) -> None:
    check = f"import sys; {code}; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("of", [[], ["solve"], ["explain"], ["frontier"], ["verify"], ["fit"]], ids=str)
def test_help_loads_nothing_heavy(of: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "autockpt", *of, "--help"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in told.splitlines()}
    assert {"autockpt", "click"} <= loaded
    assert not loaded & {"matplotlib", "numpy", "pulp", "torch"}
    assert of or "msgspec" not in loaded
