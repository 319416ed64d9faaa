"""What every verb is: a function that returns a `Result`, printed here, or raises an error with an exit status."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from .._data import files
from .._data.errors import InvalidFile, PinError, UnknownProfile
from .._data.text import terminal
from .._show.explain.results import parts_page
from ..solvers.errors import AutockptError, BudgetError, Infeasible, TooCostly, UnknownSolver
from .screen import show, width


class Result(NamedTuple):
    """What a verb found.

    Attributes:
        document: what ``--json`` prints.
        text: makes the page that people read, at most so many columns wide.
        failure: what failed, in words, if the exit status is to be 1 although there is a result; else empty.
    """

    document: object
    text: Callable[[int], str]
    failure: str = ""


class Misuse(click.ClickException):
    """One line on stderr, exit status 2."""

    exit_code = 2


MISUSES = (BudgetError, InvalidFile, Misuse, PinError, UnknownProfile, UnknownSolver)


def verb(*examples: str) -> Callable[[Callable[..., Result]], click.Command]:
    """Make a command of a function that returns a `Result`; it takes ``--json`` besides its own options.

    Args:
        examples: command lines to show below its help.
    """

    def decorate(function: Callable[..., Result]) -> click.Command:
        @functools.wraps(function)
        def run(as_json: bool, **given: Any) -> None:
            terminal.install()
            try:
                result = function(**given)
            except (AutockptError, Misuse) as error:
                said = (Misuse if isinstance(error, MISUSES) else click.ClickException)(str(error))
                if as_json:
                    _print_json(_failed(error, said.exit_code))
                elif isinstance(error, Infeasible) and error.parts is not None and given.get("verbose"):
                    show(parts_page(error.parts, error.budget_bytes, error.asked).text(width()))
                raise said from error
            if as_json:
                _print_json(result.document)
            else:
                show(result.text(width()))
            if result.failure:
                raise click.ClickException(result.failure)

        lines = "\n".join(["\b", "Examples:", *(f"  {line}" for line in examples)])
        command = click.command(epilog=lines)(run)
        help_ = "Print one JSON document on stdout, nothing else."
        command.params.append(click.Option(["--json", "as_json"], is_flag=True, help=help_))
        return command

    return decorate


def _failed(error: AutockptError | Misuse, exit_status: int) -> dict[str, object]:
    """Return the document that ``--json`` prints of an error; if no plan meets what was asked, with the nearest one."""
    if isinstance(error, Infeasible):
        figures = ("solver", "budget_bytes", "minimum_bytes", "unpinned_minimum_bytes", "dominated_by", "parts")
        told = {name: getattr(error, name) for name in (*figures, "advice", "plan")}
        return {"status": "infeasible", **told}
    if isinstance(error, TooCostly):
        plain_seconds = error.plain_seconds
        return {
            "status": "too costly",
            "solver": error.solver,
            "max_overhead": error.most_seconds / plain_seconds if plain_seconds else None,
            "least_overhead": error.least_seconds / plain_seconds if plain_seconds else None,
            "plan": error.plan,
        }
    return {"status": "failed", "error": type(error).__name__, "message": str(error), "exit_status": exit_status}


def _print_json(document: object) -> None:
    show(files.encode(document).decode())


def write(path: str | None, save: Callable[[str], object]) -> None:
    """Have `save` write a file, if there is a path, and say so on stderr."""
    if path is None:
        return
    try:
        save(path)
    except OSError as error:
        raise Misuse(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)
