"""Finding the function that a user names on the command line, and calling it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..solvers.errors import AutockptError
from .common import Misuse

if TYPE_CHECKING:
    import torch


def build(target: str) -> tuple[torch.nn.Module, object]:
    """Call the function that `target` names and return the model and the inputs that it makes.

    Args:
        target: ``package.module:function`` or ``file.py:function``. Nothing but that module or file is run.

    Raises:
        Misuse: it cannot be imported, is not a function, raises, or returns something else.
    """
    import torch

    where, colon, name = target.rpartition(":")
    if not (where and colon and name):
        raise Misuse(f"{target!r} names no function: write package.module:function or file.py:function")
    function = _function(where, name)
    try:
        made = function()
    except Exception as error:
        raise Misuse(f"{target} raised {_in_one_line(error)}") from error
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise Misuse(
            f"{target} must return (model, inputs), a torch.nn.Module and its batch; it returned {_kind(made)}"
        )
    model, inputs = made
    return model, inputs


@contextmanager
def running(target: str) -> Iterator[None]:
    """Turn what a target's model raises in a step into one line that says where.

    Raises:
        Misuse: it raised something; errors that autockpt raises on purpose pass.
    """
    try:
        yield
    except AutockptError:
        raise
    except Exception as error:
        raise Misuse(f"a step of {target} raised {_in_one_line(error)}") from error


def _function(where: str, name: str) -> Callable[[], object]:
    try:
        module = _run_file(Path(where)) if where.endswith(".py") else _import(where)
    except Exception as error:
        raise Misuse(f"cannot import {where}: {_in_one_line(error)}") from error
    function = getattr(module, name, None)
    if function is None:
        raise Misuse(f"{where} has no function {name!r}")
    if not callable(function):
        raise Misuse(f"{name!r} in {where} is not a function: it is {_kind(function)}")
    found: Callable[[], object] = function
    return found


def _import(name: str) -> ModuleType:
    """Import the module `name`, from the current directory too, as ``python -m`` does."""
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _run_file(path: Path) -> ModuleType:
    """Run the file at `path` as a module; what lies beside it can be imported, as ``python file.py`` does."""
    if not path.is_file():
        raise FileNotFoundError("no such file")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a path that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # classes defined in the file look here for their module
    spec.loader.exec_module(module)
    return module


def _in_one_line(error: Exception) -> str:
    """Return the error and where it was raised, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    words = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {words} ({Path(last.filename).name}, line {last.lineno})"


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(item).__name__ for item in value)})"
    return "None" if value is None else f"one {type(value).__name__}"
