"""What holds of the code of rooms themselves: they are read in small pieces, one after the other."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parent.parent / "autockpt"
ROOMS = (
    *("_calls", "_check", "_choose", "_cli", "_compiled", "_data", "_fit", "_ranks", "_record", "_run", "_show"),
    *("_stash", "_torch", "_train", "integrations", "solvers"),
)

MOST_ROOMS, MOST_ENTRIES, MOST_LINES, MOST_CODE_LINES, MOST_BRANCHES = 16, 15, 400, 40, 15

BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension)


@functools.cache
def sources(room: str) -> dict[str, str]:
    """Files of a room by their names in it: ``explain.brief``; a folder's ``__init__`` has the name of the folder."""
    folder = LIBRARY / room
    return {_name(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = [*path.with_suffix("").parts]
    return ".".join(parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1])


def imported(room: str, name: str, source: str) -> set[str]:
    """Return the names of the files of its own room that a file imports, also for types."""
    found = sources(room)
    folders = name.split(".")[:-1] if not any(other.startswith(f"{name}.") for other in found) else name.split(".")
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(folders) + 1:
            around = [*folders[: len(folders) - node.level + 1], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                inner = ".".join([*around, alias.name])
                names.add(inner if inner in found else ".".join(around))
    return names - {name}


def code_lines(source: str, first: int = 1, last: int = 1 << 30) -> int:
    """Count the lines from the first to the last that are no docstrings, no comments, and not blank."""
    return sum(first <= number <= last for number in lines_of_code(source))


@functools.lru_cache(maxsize=1)  # asked for each function of a file in turn
def lines_of_code(source: str) -> list[int]:
    """Return the numbers of these lines."""
    strings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), start=1)
    return [number for number, line in lines if number not in strings and line != "" and not line.startswith("#")]


def test_rooms_are_few() -> None:
    rooms = {path.name for path in LIBRARY.iterdir() if (path / "__init__.py").exists()} - {"profiles"}
    assert rooms == set(ROOMS) and len(rooms) <= MOST_ROOMS


@pytest.mark.parametrize("room", ROOMS)
def test_folders_have_few_entries(room: str) -> None:
    """A folder is read at one look."""
    crowded = set()
    for package in (LIBRARY / room).rglob("__init__.py"):
        inside = [each for each in package.parent.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()]
        if len(inside) > MOST_ENTRIES:
            crowded.add(package.parent.relative_to(LIBRARY).as_posix())
    assert crowded == set()


@pytest.mark.parametrize("room", ROOMS)
def test_files_and_functions_are_short(room: str) -> None:
    found = sources(room)
    assert {name for name, source in found.items() if source.count("\n") > MOST_LINES} == set()
    long = set()
    for name, source in found.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                branches = sum(isinstance(each, BRANCHES) for each in ast.walk(node))
                lines = code_lines(source, node.lineno, node.end_lineno or 0)
                long.update([(name, node.name)] if lines > MOST_CODE_LINES or branches > MOST_BRANCHES else [])
    assert long == set()


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_in_no_circle(room: str) -> None:
    imports = {name: imported(room, name, source) for name, source in sources(room).items()}
    while leaves := [name for name, others in imports.items() if not others & imports.keys()]:
        for name in leaves:
            del imports[name]
    assert imports == {}


@pytest.mark.parametrize("name", ["governor", "deciding.machine", "review", "starter", "step"])
def test_nothing_is_asked_what_it_is(name: str) -> None:
    """A runner and the plan that is on the model are asked for what they tell by themselves."""
    tree = ast.parse(sources("_train")[name])
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not {"isinstance", "type", "hasattr", "getattr"} & names
    assert not {"table", "strangers", "take_faults", "take_met"} & attributes


def test_no_two_classes_have_one_name() -> None:
    """Who reads it in a message, or looks for it, is to find one. Private ones belong to their files."""
    names = Counter(
        node.name
        for room in ROOMS
        for source in sources(room).values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_lists_its_files(room: str) -> None:
    """A newcomer takes the docstring of a room for its map."""
    for package in (LIBRARY / room).rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(package.read_text())) or ""
        files = {path.name for path in package.parent.glob("*.py")} - {"__init__.py"}
        rooms = {f"{path.parent.name}/" for path in package.parent.glob("*/__init__.py")}
        assert {name for name in files | rooms if name not in text} == set()
        assert set(re.findall(r"(?<![\w/])\w+\.py\b", text)) <= files
