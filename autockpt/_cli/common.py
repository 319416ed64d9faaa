"""What the commands share: options, reading and writing, errors."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from .._data import files, shipped
from .._data.errors import InvalidFile, MissingExtra, PinError
from .._data.plan import Plan
from .._data.timeline import PeakParts
from .._show.explain import parts_text
from ..solvers.errors import AutockptError, BudgetError, Infeasible, TooCostly, UnknownSolver
from .screen import show, width
from .types import OutputPath, PicturePath, Seconds, SolverName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

file_type = click.Path(exists=True, dir_okay=False, allow_dash=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")


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
solver_option = click.option(
    "--solver",
    type=SolverName(),
    default="auto",
    show_default=True,
    metavar="NAME",
    help="One solver by name; a wrong name lists them.",
)
overhead_option = click.option(
    "--max-overhead",
    type=float,
    metavar="RATIO",
    help="Instead of a budget: the lowest peak within this recompute overhead, as 0.15 for 15 %.",
)
seconds_option = click.option(
    "--seconds",
    type=Seconds(),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="For the solver; what it has found by then is taken. Up to 3 s of preparation come before it, and up to 1 s "
    "for a lower bound after it.",
)
output_option = click.option(
    "-o",
    "--output",
    type=OutputPath(),
    help="Also write the result to this file, as JSON.",
)
plot_option = click.option(
    "--plot", type=PicturePath(), help="Also draw it to this file, .png, .svg or .pdf; needs autockpt[plot]."
)


def examples(*lines: str) -> str:
    """Return commands as what stands below a verb's help."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


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


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The document that stands in for a result where there is none for another reason."""

    status: Literal["failed"] = "failed"
    error: str
    message: str
    exit_status: int


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
    max_overhead: float | None
    least_overhead: float | None
    plan: Plan | None


@contextmanager
def errors(*, as_json: bool) -> Iterator[None]:
    """Turn errors that autockpt raises on purpose into one line on stderr and an exit status.

    An infeasible budget also prints what the lowest peak consists of on stdout. With `as_json` a document stands there
    whatever happens: `NoPlan`, `NoCheapPlan` or `Failed`.
    """
    try:
        yield
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
            show(parts_text(error.parts, error.budget_bytes, width=width()))
        raise Failure(str(error)) from error
    except TooCostly as error:
        if as_json:
            print_json(
                NoCheapPlan(
                    solver=error.solver,
                    max_overhead=error.most_seconds / error.plain_seconds if error.plain_seconds else None,
                    least_overhead=error.least_seconds / error.plain_seconds if error.plain_seconds else None,
                    plan=error.plan,
                )
            )
        raise Failure(str(error)) from error
    except (AutockptError, Failure, Misuse) as error:
        misused = isinstance(error, (BudgetError, InvalidFile, Misuse, PinError, UnknownSolver))
        said: Failure | Misuse = Misuse(str(error)) if misused else Failure(str(error))
        if as_json:
            print_json(Failed(error=type(error).__name__, message=str(error), exit_status=said.exit_code))
        raise said from error


def read(path: str) -> tuple[bytes, str]:
    """Return all of the file or the recorded profile at `path` (``-`` is stdin), unpacked, and what people call it."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise Misuse("cannot read -: standard input is closed")
            return files.unpack(sys.stdin.buffer.read(), source="<stdin>"), "<stdin>"
        return files.unpack(shipped.locate(path).read_bytes(), source=path), path
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror}") from error


def write(value: msgspec.Struct, path: str | None) -> None:
    """Write `value` to `path` as JSON, if there is a path, and say so on stderr."""
    if path is not None:
        with writing(path):
            files.save(value, path)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Say on stderr that `path` was written, or why it cannot be."""
    try:
        yield
    except OSError as error:
        raise Misuse(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)


def write_plot(figure: Figure, path: str) -> None:
    """Write a figure to `path`, in the format that its name ends in."""
    with writing(path):
        figure.savefig(path, dpi=150)


def print_json(value: object) -> None:
    """Print `value` as one JSON document."""
    show(files.encode(value).decode(), plain=True)


def require_torch() -> None:
    """Say in one line that running a model takes torch, before something imports it.

    Raises:
        MissingExtra: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            "running a model takes torch, which is not installed; install it by: pip install torch. "
            "solve, frontier, explain and profiles do without"
        )
