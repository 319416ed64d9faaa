"""What a person sees: how wide, in which colours, and what takes so long.

Texts are plain wherever they are made; they are coloured here, last, by their lines.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

PIPED = 100  # columns where there is no terminal
WIDEST = 160  # lines longer than this are hard to read

_STYLES: tuple[tuple[str, str], ...] = (
    (r"(?m)^(?:.*above the budget of.*|.*(?!100\.0%)\b\d{3,}\.\d% of the budget.*)$", "31"),
    (r"\A(?:.|\n(?=.))+", "1"),  # the title
    (r"(?<=\n\n)\S.*(?=\n(?:  |.*┤))", "1"),  # the heading of what is indented, or of a chart
    (r"(?<=\n\n)\S(?:.|\n(?=.))*?(?=\n.*\n---)", "1"),  # the heading of a table
    (r"(?m)(?<=  |\d )recomputed(?=(?:, [a-z ]+)?$)", "33"),
    (r"(?m)(?<=  |\d )partly(?=(?:, [a-z ]+)?$)", "36"),
)
"""What is styled in a page, and how: the numbers of ECMA-48 for red, bold, yellow and cyan."""


def width() -> int:
    """Return the columns to fill: those of the terminal, or of COLUMNS; 100 where there is neither."""
    return min(shutil.get_terminal_size((PIPED, 0)).columns, WIDEST)


def show(text: str, *, plain: bool = False) -> None:
    """Print a page on stdout; on a terminal headings, decisions and what is over the budget are coloured.

    Args:
        text: the page.
        plain: whether it is for programmes, and never coloured.
    """
    for pattern, style in () if plain else _STYLES:
        text = re.sub(pattern, rf"\033[{style}m\g<0>\033[0m", text)
    try:
        click.echo(text, nl=False, color=_wants_colours())
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise click.ClickException(f"cannot write to standard output: {error.strerror}") from error


def tell(line: str) -> None:
    """Say something on stderr in one line; on a terminal in as many as it takes without breaking words."""
    if _is_terminal(sys.stderr):
        line = textwrap.fill(line, max(width(), 20), break_on_hyphens=False)
    click.echo(line, err=True)


@contextmanager
def progress(what: str, *, limit_seconds: float | None = None, patience_seconds: float = 2.0) -> Iterator[None]:
    """Say on stderr that `what` is going on, once it takes long, where stderr is a terminal and no ``--json`` is asked.

    Args:
        what: the work, in words.
        limit_seconds: about how long it may take.
        patience_seconds: after which it is said.
    """
    context = click.get_current_context(silent=True)
    for_programmes = context is not None and context.params.get("as_json")
    limit = "" if limit_seconds is None else f", up to {limit_seconds:.0f} s"
    timer = threading.Timer(patience_seconds, tell, [f"{what} …{limit}"])
    timer.daemon = True
    if not for_programmes and _is_terminal(sys.stderr):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; it is None where the caller has closed it."""
    return stream is not None and not stream.closed and stream.isatty()


def _wants_colours() -> bool | None:
    """Return what the environment says (https://no-color.org); None: colours where stdout is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None
