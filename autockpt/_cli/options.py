"""The options and arguments that several verbs share, and the checks of their values."""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from .._data import shipped
from .._data.goal import Goal, refuse_percent
from .._data.hardware.devices import gpu_of, named
from .._data.hardware.rooflines import ROOFLINES
from .._data.offload import Offload
from .._data.profile import Profile
from .._data.text.amounts import MOST_BYTES

F = TypeVar("F", bound=Callable[..., Any])

DPI = 150  # of plots

BY_DEFAULT = {"solver": "auto", "seconds": 3.0}

BUDGET = (
    "8GiB, 8GB, a number of bytes, or 80% of the device's memory; min for the lowest peak at one level of recomputing, "
    "lowest for the lowest of all."
)


class FilePath(click.Path):
    """A path that a file can have: click's own fails on a null character with an error of Python's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or refuse it in one line."""
        if "\0" in str(value):
            self.fail(f"{value!r} can be no path of a file: it has a null character in it", param, ctx)
        return super().convert(value, param, ctx)


def _writable(*endings: str) -> dict[str, Any]:
    """Return the settings of an option that names a file to write. Whether it can be written is tried before the work.

    Args:
        endings: suffixes that the name may have; if none are given, any.
    """

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value == "-":
            raise click.BadParameter("'-' is no file to write; --json prints the document on stdout", ctx, param)
        if value is None:
            return None
        if endings and Path(value).suffix.lower() not in endings:
            raise click.BadParameter(f"the name {value!r} does not end in one of {', '.join(endings)}", ctx, param)
        try:  # only trying shows it: permissions say nothing of root, full disks and read-only file systems
            if not Path(value).exists():
                tempfile.TemporaryFile(dir=Path(value).absolute().parent).close()
        except OSError as error:
            raise click.BadParameter(f"{value!r} cannot be written: {error.strerror}", ctx, param) from error
        return value

    return {"type": FilePath(dir_okay=False, writable=True), "callback": check}


def complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer recorded profiles by name, and files."""
    found = [CompletionItem(name) for name in shipped.names() if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]


target = click.argument("target", type=FilePath(), metavar="TARGET")
source = click.argument("source", metavar="SOURCE", shell_complete=complete_source)
keep = click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Calls never to run again, as '*.attn', or functions, as '*.attn/softmax'. May be given several times.",
)
recompute = click.option(
    "--recompute", multiple=True, metavar="PATTERN", help="Calls always to run again. May be given several times."
)
offload = click.option(
    "--offload",
    metavar="PLACE",
    help="Where tensors may wait off the device: host, or a folder; with its rate, as host@25GB/s (the one assumed).",
)
optimizer = click.option(
    "--optimizer",
    metavar="NAME",
    help="Count the state and the step of this class of torch.optim, with its defaults: adamw.",
)
overhead = click.option(
    "--max-overhead",
    type=float,
    metavar="RATIO",
    help="Instead of a budget: the lowest peak within this recompute overhead, as 0.15 for 15 %.",
)
output = click.option("-o", "--output", help="Also write the result to this file, as JSON.", **_writable())
plot = click.option(
    "--plot",
    help="Also draw it to this file, .png, .svg or .pdf; needs autockpt[plot].",
    **_writable(".png", ".svg", ".pdf"),
)


def command(verb: str, source: str, *, output: str = "", **asked: Any) -> str:
    """Return a command line with the options that were given, without those that have their default.

    Args:
        verb: the verb.
        source: its argument.
        output: a file to write; empty for none.
        **asked: values of options by name; a tuple for an option that is given several times.
    """
    words = ["autockpt", verb, source]
    for name, value in asked.items():
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None and BY_DEFAULT.get(name) != each:
                words += [f"--{name.replace('_', '-')}", f"{each:g}" if isinstance(each, float) else str(each)]
    return shlex.join([*words, "-o", output] if output else words)


verbose = click.option("-v", "--verbose", is_flag=True, help="Show all that is known, and not the first screen.")


def seconds(default: float, help_: str) -> Callable[[F], F]:
    """Return the option that says how long to search: a finite number above 0."""

    def check(ctx: click.Context, param: click.Parameter, value: float) -> float:
        if not math.isfinite(value):
            raise click.BadParameter(f"{value} is no number of seconds", ctx, param)
        return value

    above_0 = click.FloatRange(min=0, min_open=True)
    return click.option(
        "--seconds", type=above_0, callback=check, default=default, show_default=True, metavar="SECONDS", help=help_
    )


def at_most_one(**options: object) -> bool:
    """Return whether one of these options was given.

    Raises:
        UsageError: more than one was.
    """
    given = sum(value is not None for value in options.values())
    if given > 1:
        *names, last = (f"--{name.replace('_', '-')}" for name in options)
        raise click.UsageError(f"give at most one of {', '.join(names)} and {last}")
    return bool(given)


def refuse_unclear(*budgets: int | str | None, max_overhead: float | None = None, offload: str | None = None) -> None:
    """Refuse what makes no sense whatever the model, before anything is imported or recorded.

    Raises:
        BudgetError: a budget, an overhead or a place does not parse.
    """
    for budget in budgets:
        if budget is not None:
            Goal.of(budget, total_bytes=MOST_BYTES)  # of whichever device
    if max_overhead is not None:
        Goal.of(None, max_overhead)
        refuse_percent(max_overhead)
    Offload.read(offload)


def device_bytes(profile: Profile) -> int | None:
    """Return the memory of a profile's device, of which a budget in percent is a share; None where it is not known."""
    return gpu_of(named(profile.device)).total_bytes if profile.device in ROOFLINES else None


solver_seconds = seconds(
    3.0,
    "For the solver; what it has found by then is taken. Up to 3 s of preparation come before it, and up to 1 s for a "
    "lower bound after it.",
)
