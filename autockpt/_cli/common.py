"""What the commands share: options, reading and writing, errors, progress."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click
import msgspec

from .. import _files
from .._errors import AutockptError, BudgetError, Infeasible, InvalidFile, PinError, TooCostly, UnknownSolver
from .._explain import parts_text
from .._parts import PeakParts
from .._plan import Plan

__all__ = [
    "Failure",
    "Misuse",
    "at_most_one",
    "budget_help",
    "errors",
    "file_type",
    "hush_profiler",
    "json_option",
    "keep_option",
    "optimizer_option",
    "output_option",
    "overhead_option",
    "print_json",
    "progress",
    "read",
    "recompute_option",
    "width",
    "write",
]

file_type = click.Path(exists=True, dir_okay=False, allow_dash=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")


def _in_a_folder(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an output whose folder is missing before the work begins, not after."""
    if value is not None and not Path(value).absolute().parent.is_dir():
        raise click.BadParameter(f"the folder of {value!r} does not exist", context, parameter)
    return value


keep_option = click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Calls never to run again, as '*.attn'. May be given several times.",
)
recompute_option = click.option(
    "--recompute", multiple=True, metavar="PATTERN", help="Calls always to run again. May be given several times."
)
optimizer_option = click.option(
    "--optimizer",
    metavar="NAME",
    help="Count the state and the step of this class of torch.optim, with its defaults: adamw.",
)
budget_help = "8GiB, 8GB, or a number of bytes; min for the lowest peak that can be reached."
overhead_option = click.option(
    "--max-overhead",
    type=float,
    metavar="RATIO",
    help="Instead of a budget: the lowest peak within this recompute overhead, as 0.15 for 15 %.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    callback=_in_a_folder,
    help="Also write the result to this file, as JSON.",
)


class Failure(click.ClickException):
    """One line on stderr, exit status 1."""

    exit_code = 1


class Misuse(click.ClickException):
    """One line on stderr, exit status 2."""

    exit_code = 2


def at_most_one(**options: object) -> str | None:
    """Return the name of the option that was given; None where none was.

    Raises:
        UsageError: more than one was.
    """
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        names = [f"--{name.replace('_', '-')}" for name in options]
        raise click.UsageError(f"give at most one of {', '.join(names[:-1])} and {names[-1]}")
    return given[0] if given else None


class NoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The document that stands in for a plan where none meets the budget; it holds the one that reaches the minimum."""

    status: Literal["infeasible"] = "infeasible"
    solver: str
    budget_bytes: int
    minimum_bytes: int
    unpinned_minimum_bytes: int | None
    dominated_by: str
    parts: PeakParts | None
    advice: tuple[str, ...]
    plan: Plan | None


class NoCheapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The document that stands in for a plan where all cost more than was asked; it holds the cheapest."""

    status: Literal["too costly"] = "too costly"
    solver: str
    max_overhead: float
    least_overhead: float
    plan: Plan | None


@contextmanager
def errors(*, as_json: bool) -> Iterator[None]:
    """Turn errors that autockpt raises on purpose into one line on stderr and an exit status.

    An infeasible budget also prints what the lowest peak consists of on stdout, with `as_json` as a `NoPlan`.
    """
    try:
        yield
    except (BudgetError, InvalidFile, PinError, UnknownSolver) as error:
        raise Misuse(str(error)) from error
    except Infeasible as error:
        if as_json:
            print_json(
                NoPlan(
                    solver=error.solver,
                    budget_bytes=error.budget_bytes,
                    minimum_bytes=error.minimum_bytes,
                    unpinned_minimum_bytes=error.unpinned_minimum_bytes,
                    dominated_by=error.dominated_by,
                    parts=error.parts,
                    advice=error.advice,
                    plan=error.plan,
                )
            )
        elif error.parts is not None:
            click.echo(parts_text(error.parts, error.budget_bytes, width=width()), nl=False)
        raise Failure(str(error)) from error
    except TooCostly as error:
        if as_json and error.plain_seconds:
            print_json(
                NoCheapPlan(
                    solver=error.solver,
                    max_overhead=error.most_seconds / error.plain_seconds,
                    least_overhead=error.least_seconds / error.plain_seconds,
                    plan=error.plan,
                )
            )
        raise Failure(str(error)) from error
    except AutockptError as error:
        raise Failure(str(error)) from error


def read(path: str) -> tuple[bytes, str]:
    """Return all of the file at `path` (``-`` is stdin), and what people call it."""
    try:
        if path == "-":
            return sys.stdin.buffer.read(), "<stdin>"
        return Path(path).read_bytes(), path
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror}") from error


def write(value: msgspec.Struct, path: str | None) -> None:
    """Write `value` to `path` as JSON, if there is a path, and say so on stderr."""
    if path is None:
        return
    try:
        _files.save(value, path)
    except OSError as error:
        raise Misuse(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)


def print_json(value: msgspec.Struct) -> None:
    """Print `value` as one JSON document."""
    click.echo(_files.encode(value).decode(), nl=False)


def hush_profiler() -> None:
    """Keep torch's profiler, which does the recording, from reporting on stderr. Call it before torch is imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # each start and stop
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # frees of memory older than the recording


def width() -> int:
    """Return the columns to fill: those of the terminal; 100 where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 100


@contextmanager
def progress(what: str, *, patience_seconds: float = 2.0) -> Iterator[None]:
    """Say on stderr that `what` is going on, once it takes long, and only where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    started = time.perf_counter()

    def tick() -> None:
        shown = ""
        wait = patience_seconds
        while not done.wait(wait):
            shown = f"{what} … {time.perf_counter() - started:.0f} s"
            click.echo(f"\r{shown}", err=True, nl=False)
            wait = 1.0
        if shown:
            click.echo(f"\r{' ' * len(shown)}\r", err=True, nl=False)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
