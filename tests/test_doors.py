"""Tests reach what is private in the library through tests/doors.py alone, and each of its names is used."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOORS = "doors.py"

PAST = {
    # Who reaches past the doors for what, and why. A line may only go.
    ("cli/shell.py", "_cli"): "sees whether a process imports torch, and the doors import it",
    ("test_surface.py", "_cli.verbs"): "sees whether a process imports torch, and the doors import it",
    ("test_surface.py", "_check.fitting"): "sees whether a process imports torch, and the doors import it",
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every file of the tests, by its path."""
    tests = ROOT / "tests"
    return {path.relative_to(tests).as_posix(): ast.parse(path.read_text()) for path in tests.rglob("*.py")}


@functools.cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a tree: to find them takes longer than to look at them."""
    return [*ast.walk(tree)]


def is_private(part: str) -> bool:
    """Whether one part of a dotted name is private."""
    return part.startswith("_") and not part.endswith("__")


def imports_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each imported module or name, in full, after the name that it is bound to."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def attributes_of(tree: ast.AST) -> Iterator[str]:
    """Each attribute that is read from an imported name, that name in full."""
    bound = {**dict(imports_of(tree)), "autockpt": "autockpt"}  # `import autockpt.solvers` binds that too
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
            yield f"{bound[node.value.id]}.{node.attr}"


def said_in_strings(tree: ast.AST) -> Iterator[str]:
    """Each dotted name of the library in a string: code for a process of its own, or what is to be patched."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\bautockpt(?:\.\w+)+", node.value)
            for module, names in re.findall(r"\bfrom (autockpt[.\w]*) import \(?([\w, ]+)", node.value):
                yield from (f"{module}.{words.split()[0]}" for words in names.split(",") if words.strip())


def reached(tree: ast.AST) -> set[str]:
    """What is private in the library and is imported, read or said, each after `autockpt.`.

    What is read from a public object stays out, whatever it is called.
    """
    imported = {name for _, name in imports_of(tree) if any(map(is_private, name.split(".")))}
    read = {name for name in (*attributes_of(tree), *said_in_strings(tree)) if is_private(name.split(".")[1])}
    private = {name.removeprefix("autockpt.") for name in imported | read if name.startswith("autockpt.")}
    return {name for name in private if not any(name.startswith(f"{shorter}.") for shorter in private)}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import autockpt._run.frames", {"_run.frames"}),
        ("import autockpt._train as run", {"_train"}),
        ("from autockpt import Plan, _train as run", {"_train"}),
        ("def inside(): from autockpt._run.frames import frame, slots", {"_run.frames.frame", "_run.frames.slots"}),
        ("import autockpt; autockpt._train.apply(1)", {"_train"}),
        ("import autockpt.solvers; autockpt._HOME", {"_HOME"}),
        ("import autockpt as library; library._train", {"_train"}),
        ("from autockpt.solvers.programme.ilp import _secret", {"solvers.programme.ilp._secret"}),
        ("patch('autockpt._train.apply.apply')", {"_train.apply.apply"}),
        ("run('import sys; from autockpt import solve, _train')", {"_train"}),
        ("run(f'import autockpt._cli.{verb}')", {"_cli"}),
        ("import autockpt; autockpt.__all__; autockpt.Plan._private; model._private; 'autockpt.solve'", set()),
        ("from tests.doors import Frame; Frame._private", set()),
    ],
)
def test_all_ways_past_the_doors_are_seen(code: str, found: set[str]) -> None:
    assert reached(ast.parse(code)) == found


def test_tests_reach_what_is_private_through_the_doors() -> None:
    past = {
        (file, name) for file, tree in trees().items() if file not in {DOORS, "test_doors.py"} for name in reached(tree)
    }
    assert sorted(past - set(PAST)) == [], "import these from tests.doors"
    assert sorted(set(PAST) - past) == [], "these are gone: take them out of the table"


def test_every_door_is_used() -> None:
    doors = {bound for bound, name in imports_of(trees()[DOORS]) if name.startswith("autockpt.")}
    used = {
        name.split(".")[2]
        for tree in trees().values()
        for name in (*(name for _, name in imports_of(tree)), *attributes_of(tree))
        if name.startswith("tests.doors.")
    }
    assert doors
    assert sorted(doors - used) == []


def test_doors_open_without_torch() -> None:
    """To what needs none: tests of choosing and showing run without it."""
    code = "import sys; sys.modules['torch'] = None; from tests.doors import find_candidates, plan_page"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
