"""What a user's function makes: a model, its batch, a loss, an optimizer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .._data.errors import MissingExtra, ProfilingError
from .._data.files import MAXIMUM_BYTES
from ..solvers.errors import AutockptError
from .screen import progress
from .verb import Misuse

if TYPE_CHECKING:
    import torch

    from .._record.optimizers.memory import Optimizers

OURS = str(Path(__file__).parent.parent / "_")  # how the paths of the library's own rooms begin


class Target(NamedTuple):
    """What a user's function made: a model, its batch, and perhaps a loss and an optimizer."""

    model: torch.nn.Module
    inputs: object
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Optimizers | None = None


def names_function(source: str) -> bool:
    """Whether a source is ``file.py:function`` or ``package.module:function``, and not a file of that name."""
    return ":" in source and not Path(source).exists()


def build(target: str, hint: str = "") -> Target:
    """Call the function that `target` names and return what it makes.

    Args:
        target: ``package.module:function`` or ``file.py:function``. Nothing but that module or file is run.
        hint: what may help if the function fails, a sentence; empty for none.

    Raises:
        Misuse: the target cannot be imported, is not a function, raises, or returns something else.
        MissingExtra: torch is not installed.
    """
    require_torch()
    import torch

    where, _, name = target.rpartition(":")
    if not (where and name):
        raise Misuse(f"{target!r} names no function: write package.module:function or file.py:function")
    with progress(f"importing {target}"):
        with calling(f"importing {where}"):
            module = _module(where)
        function = getattr(module, name, None)
        if not callable(function):
            raise Misuse(f"{where} has no function {name!r}" + (f": it is {_kind(function)}" if function else ""))
        with calling(target, hint):
            made = function()
    if not (isinstance(made, tuple) and len(made) in (2, 3, 4) and isinstance(made[0], torch.nn.Module)):
        raise Misuse(
            f"{target} must return (model, inputs), (model, inputs, loss) or (model, inputs, loss, optimizer), a "
            f"torch.nn.Module and its batch first; it returned {_kind(made)}"
        )
    found = Target(*made)
    if found.loss is not None and not callable(found.loss):
        raise Misuse(
            f"the loss that {target} returned is {_kind(found.loss)}; it must be a function from the model's outputs "
            "to a scalar, or None"
        )
    for each in found.optimizer if isinstance(found.optimizer, (list, tuple)) else [found.optimizer]:
        if not isinstance(each, (torch.optim.Optimizer, str, type(None))):
            raise Misuse(
                f"the optimizer that {target} returned is {_kind(each)}; it must be one of torch.optim, its name, a "
                "list of them, or None"
            )
    return found


@contextmanager
def calling(what: str, hint: str = "") -> Iterator[None]:
    """Run the user's own code: what it prints goes to stderr, and so does the traceback of what it raises.

    Args:
        what: was called, in words.
        hint: what may help, a sentence; empty for none.

    Raises:
        Misuse: the code raised something, or ended the process. Errors that autockpt raises on purpose pass unchanged.
    """
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the page, or the document
            yield
    except SystemExit as stopped:
        raise Misuse(f"{what} ended the process, by sys.exit({stopped.code!r})") from stopped
    except Exception as raised:
        error = raised.own if isinstance(raised, ProfilingError) else raised
        if isinstance(error, (AutockptError, Misuse)):
            raise
        if not isinstance(error, ModuleNotFoundError):  # its message says all
            told = traceback.TracebackException.from_exception(error)
            theirs = [frame for frame in told.stack if not frame.filename.startswith(OURS)]
            if theirs[-1:] == told.stack[-1:]:  # else the error is ours
                told.stack[:] = theirs
            click.echo("".join(told.format()), err=True, nl=False)
        said = f"{what} raised {type(error).__name__}: {error}"
        raise Misuse(f"{said.removesuffix('.')}. {hint}" if hint else said) from error


def require_torch() -> None:
    """Refuse in one line to run a model without torch, before something imports it.

    Raises:
        MissingExtra: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            "running a model takes torch, which is not installed; install it by: pip install torch. "
            "solve, frontier, explain and profiles do without"
        )


def _module(where: str) -> ModuleType:
    """Import a module, also from the current directory, or run a file, which can import what is beside it."""
    if not where.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(where)
    path = Path(where)
    if not path.is_file():
        raise Misuse(f"cannot import {path}: {'it is no regular file' if path.exists() else 'no such file'}")
    if path.stat().st_size > MAXIMUM_BYTES:
        raise Misuse(f"cannot import {path}: it has {path.stat().st_size:,} bytes, and no programme is as long")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a path that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # classes defined in the file look here for their module
    spec.loader.exec_module(module)
    return module


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(item).__name__ for item in value)})"
    return "None" if value is None else f"one {type(value).__name__}"
