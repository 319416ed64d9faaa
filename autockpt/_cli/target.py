"""Finding the function that a user names on the command line, and calling it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..solvers.errors import AutockptError
from .common import Misuse

if TYPE_CHECKING:
    import torch

    from .._record.optimizer import Optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a user's function made.

    Attributes:
        model: the model.
        inputs: its batch.
        loss: maps the model's outputs to a scalar; None where it was not told.
        optimizer: what trains the model, or the name of its class; None where it was not told.
    """

    model: torch.nn.Module
    inputs: object
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Optimizers | None = None


def build(target: str) -> Target:
    """Call the function that `target` names and return what it makes.

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
    if not (isinstance(made, tuple) and len(made) in (2, 3, 4) and isinstance(made[0], torch.nn.Module)):
        raise Misuse(
            f"{target} must return (model, inputs), (model, inputs, loss) or (model, inputs, loss, optimizer), a "
            f"torch.nn.Module and its batch first; it returned {_kind(made)}"
        )
    found = Target(**dict(zip(("model", "inputs", "loss", "optimizer"), made, strict=False)))
    if found.loss is not None and not callable(found.loss):
        raise Misuse(
            f"the loss that {target} returned is {_kind(found.loss)}; it must be a function from the model's outputs "
            "to a scalar, or None"
        )
    optimizers = found.optimizer if isinstance(found.optimizer, (list, tuple)) else [found.optimizer]
    strange = [each for each in optimizers if not isinstance(each, (torch.optim.Optimizer, str, type(None)))]
    if strange:
        raise Misuse(
            f"the optimizer that {target} returned is {_kind(strange[0])}; it must be one of torch.optim, its name, a "
            "list of them, or None"
        )
    return found


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
