"""Which room of the library imports which: arrows run one way, whether at module level, in functions, or for types.

    data ◀── torch ◀── calls, ranks ◀── stash ◀── run ◀── record ◀─┐
    solvers ◀──────────────────────── choose ◀── fit               train ◀── check ◀── show ◀── cli

Each room may import those that an arrow leads to, however far. All may import the leaves.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.doors import HOMES

ROOT = Path(__file__).parent.parent

BELOW_TRAIN = {"_data", "_torch", "_calls", "_ranks", "_stash", "_run", "_record", "_compiled", "solvers", "_choose"}

LEFT_OF = {
    "solvers": set[str](),
    "_data": set[str](),
    "_torch": {"_data"},
    "_calls": {"_data", "_torch"},
    "_ranks": {"_data", "_torch"},
    "_stash": {"_data", "_torch", "_calls", "_ranks"},
    "_run": {"_data", "_torch", "_calls", "_ranks", "_stash"},
    "_record": {"_data", "_torch", "_calls", "_ranks", "_stash", "_run"},
    "_choose": {"_data", "solvers"},
    "_compiled": {"_data", "_torch", "_calls", "_ranks", "_record", "solvers", "_choose"},
    "_fit": {"_data", "solvers", "_choose"},
    "_train": BELOW_TRAIN,
    "_check": BELOW_TRAIN | {"_train", "_fit"},
    "_show": {"_data", "_record", "solvers", "_choose", "_fit", "_train", "_check"},
    "_cli": {"_data", "_torch", "_record", "solvers", "_choose", "_fit", "_train", "_check", "_show"},
    "profiles": set[str](),
}

MOST_ARROWS = 80

LEAVES = {"solvers.errors", "solvers.refusals", "solvers.units"}
"""What all may import; they import one another, and nothing else of the library."""

BY_NAME = {
    "__init__.py": "public names",
    "solvers/__init__.py": "public names",
    "solvers/programme/highs.py": "PuLP",
    "_data/text/document.py": "pages of _show",
    "_cli/group.py": "commands",
    "_cli/target.py": "the user's module",
}
"""Who imports by a name that the arrows do not see, and what."""

HANDED_OUT = {"solvers/__init__.py": "_choose"}
"""A room whose public names another one hands out: it is named there for type checkers, and loaded by who asks."""

WITHOUT_TORCH = {"_data", "solvers", "_choose", "_fit", "_show", "_cli", "profiles"}
"""Rooms that load without torch."""

WITH_TORCH = set(LEFT_OF) - WITHOUT_TORCH
"""Rooms that may import torch at module level."""


class Import(NamedTuple):
    """One imported name."""

    file: str
    name: str
    where: str  # module, function or types

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]


BESIDE = ("profiles", "solvers")


def files() -> Iterator[tuple[str, Path]]:
    """All of the library but its door, each as a path in the package; solvers and profiles lie beside it."""
    for path in chain((ROOT / "autockpt").glob("_*/**/*.py"), *((ROOT / room).rglob("*.py") for room in BESIDE)):
        yield path.relative_to(ROOT).as_posix().removeprefix("autockpt/"), path


def imports_of(file: str, tree: ast.AST) -> Iterator[Import]:
    """Find all imports of a file, relative ones resolved."""
    package = ["autockpt", *file.split("/")[:-1]]

    def walk(node: ast.AST, where: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = where
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inside = "function"
            elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                inside = "types"
            if isinstance(child, ast.Import):
                yield from (Import(file, alias.name, where) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                start = package[: len(package) + 1 - child.level] if child.level else []
                start += child.module.split(".") if child.module else []
                yield from (Import(file, ".".join([*start, alias.name]), where) for alias in child.names)
            yield from walk(child, inside)

    return walk(tree, "module")


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every file of the library, by its path: parsed where a test asks, not in each process that collects it."""
    return {file: ast.parse(path.read_text()) for file, path in files()}


@functools.cache
def imports() -> list[Import]:
    return [each for file, tree in trees().items() for each in imports_of(file, tree)]


def imported(name: str) -> str | None:
    """Return the room that is imported, or the leaf; None for what is not the library's, and for its version."""
    package, *rest = name.split(".")
    if package != "autockpt" or rest == ["__version__"]:
        return None
    if not rest:
        return "everything"
    home = next((module for module, names in HOMES.items() if rest[0] in names), None)
    if home is not None:  # a public name, from the door
        rest = home.split(".")
    leaf = ".".join(rest[:2])
    return leaf if leaf in LEAVES else rest[0]


def test_every_file_lies_in_a_room() -> None:
    assert {file.partition("/")[0] for file in trees()} == set(LEFT_OF)
    assert {path.name for path in (ROOT / "autockpt").glob("*.py")} == {"__init__.py", "__main__.py"}


def test_arrows_run_one_way() -> None:
    against = {
        (each.file, to)
        for each in imports()
        if (to := imported(each.name)) is not None
        and to not in {each.room, *LEFT_OF[each.room], *LEAVES}
        and (each.where != "types" or HANDED_OUT.get(each.file) != to)
    }
    assert sorted(against) == [], "these run against the arrows"


def test_arrows_are_few() -> None:
    arrows = {(each.room, to) for each in imports() if (to := imported(each.name)) not in {None, each.room, *LEAVES}}
    assert len(arrows) <= MOST_ARROWS


@pytest.mark.parametrize("room", sorted({file.partition("/")[0] for file in HANDED_OUT}))
def test_what_a_room_hands_out_is_not_loaded_with_it(room: str) -> None:
    """All its files together load no other room, but those that its arrows lead to."""
    modules = [file.removesuffix(".py").replace("/", ".") for file in trees() if file.startswith(f"{room}/")]
    code = f"import sys, autockpt.{', autockpt.'.join(modules)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    rooms = {name.split(".")[1] for name in loaded if name.startswith("autockpt.")}
    assert rooms <= {room, *LEFT_OF[room]}


def test_leaves_import_nothing_but_one_another() -> None:
    of_leaves = [each for each in imports() if each.file.removesuffix(".py").replace("/", ".") in LEAVES]
    assert of_leaves
    assert {to for each in of_leaves if (to := imported(each.name)) is not None} <= LEAVES
    assert {each.name.partition(".")[0] for each in of_leaves} <= {*sys.stdlib_module_names, "autockpt"}


def test_only_these_import_by_name() -> None:
    every = {**trees(), "__init__.py": ast.parse((ROOT / "autockpt" / "__init__.py").read_text())}
    found = {
        file
        for file, tree in every.items()
        if any(
            getattr(node, "attr", getattr(node, "id", "")) in {"import_module", "__import__"} for node in ast.walk(tree)
        )
    }
    assert found == set(BY_NAME)


def test_torch_is_imported_where_models_run() -> None:
    torch = [each for each in imports() if each.name.partition(".")[0] == "torch" and each.where != "types"]
    assert {each.room for each in torch if each.where == "module"} == WITH_TORCH
    assert {each.room for each in torch if each.where == "function"} <= {*WITH_TORCH, "_cli"}


@pytest.mark.parametrize("room", sorted(WITHOUT_TORCH))
def test_rooms_without_torch_load_without_it(room: str) -> None:
    """What they import imports none either."""
    modules = [file.removesuffix(".py").replace("/", ".") for file in trees() if file.startswith(f"{room}/")]
    code = f"import sys, autockpt.{', autockpt.'.join(modules)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_integrations_use_what_is_public() -> None:
    """They are written as anybody could write one: by the door. What a slip is, is asked of `_data`."""
    for path in (ROOT / "autockpt" / "integrations").glob("*.py"):
        found = imports_of(f"integrations/{path.name}", ast.parse(path.read_text()))
        named = {each.name.partition(".")[2] for each in found if each.name.startswith("autockpt.")}
        assert {name.partition(".")[0] for name in named if name.startswith("_")} <= {"_data"}
