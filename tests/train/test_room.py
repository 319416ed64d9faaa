"""What holds of the code of the room itself: it is read in small pieces, one after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOM = Path(__file__).parent.parent.parent / "autockpt" / "_train"
SOURCES = {path.stem: path.read_text() for path in sorted(ROOM.glob("*.py"))}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}

MOST_LINES, MOST_CODE_LINES, MOST_BRANCHES = 300, 40, 15
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension)


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for name, tree in TREES.items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def code_lines(name: str, function: ast.FunctionDef) -> int:
    """Count the lines of a function that are neither its docstring, nor a comment, nor blank."""
    docstring = range(0)
    if ast.get_docstring(function) is not None:
        docstring = range(function.body[0].lineno, (function.body[0].end_lineno or 0) + 1)
    lines = SOURCES[name].splitlines()
    own = (number for number in range(function.lineno, (function.end_lineno or 0) + 1) if number not in docstring)
    return sum(bool(line) and not line.startswith("#") for line in (lines[number - 1].strip() for number in own))


def test_files_and_functions_are_short() -> None:
    assert {name for name, source in SOURCES.items() if source.count("\n") > MOST_LINES} == set()
    assert {(name, each.name) for name, each in functions() if code_lines(name, each) > MOST_CODE_LINES} == set()
    branching = {
        (name, each.name): sum(isinstance(node, BRANCHES) for node in ast.walk(each)) for name, each in functions()
    }
    assert {place for place, branches in branching.items() if branches > MOST_BRANCHES} == set()


def test_imports_run_in_no_circle() -> None:
    imports = {
        name: {
            module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.level == 1
            for module in ([node.module] if node.module else [alias.name for alias in node.names])
        }
        for name, tree in TREES.items()
    }
    while leaves := [name for name, others in imports.items() if not others & imports.keys()]:
        for name in leaves:
            del imports[name]
    assert imports == {}


@pytest.mark.parametrize("name", ["governor", "lessons", "step", "acting"])
def test_nothing_is_asked_what_it_is(name: str) -> None:
    """A way and the plan that is on the model are asked what their protocols say."""
    names = {node.id for node in ast.walk(TREES[name]) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)}
    assert not {"isinstance", "type", "hasattr", "getattr"} & names
    assert not {"table", "strangers", "take_faults", "take_met"} & attributes
