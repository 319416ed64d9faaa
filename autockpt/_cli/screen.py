"""What a person sees: pages, messages and progress, as wide as the terminal."""

from __future__ import annotations

import errno
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

PIPED = 100  # columns if there is no terminal
WIDEST = 160  # lines longer than this are hard to read


def width() -> int:
    """Return the columns to fill: those of the terminal, or of COLUMNS, at most 160; 100 if there is neither."""
    return min(shutil.get_terminal_size((PIPED, 0)).columns, WIDEST)


def show(text: str) -> None:
    """Print a page, or a document, on stdout."""
    try:
        click.echo(text, nl=False)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise click.ClickException(f"cannot write to standard output: {error.strerror}") from error


def tell(line: str) -> None:
    """Say something on stderr in one line; on a terminal in as many lines as it takes without breaking words."""
    if _is_terminal(sys.stderr):
        from .._show.page import filled  # --help does not need it

        line = filled(line, max(width(), 20))
    click.echo(line, err=True)


@contextmanager
def progress(what: str, *, limit_seconds: float | None = None, patience_seconds: float = 2.0) -> Iterator[None]:
    """Say on stderr that `what` is going on, once it takes long. Nothing is said with ``--json``, or on no terminal.

    Args:
        what: the work, in words.
        limit_seconds: about how long it may take.
        patience_seconds: after so many it is said.
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


@contextmanager
def working() -> Iterator[Callable[[str], None]]:
    """Say on a terminal's last line what goes on, and wipe it at the end. Say nothing elsewhere, or with ``--json``."""
    context = click.get_current_context(silent=True)
    shown = _is_terminal(sys.stderr) and not (context is not None and context.params.get("as_json"))

    def tell(what: str) -> None:
        if shown:
            click.echo(f"\r\x1b[K{what[: width() - 2]} …", err=True, nl=False)

    try:
        yield tell
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. The stream is None if the caller has closed it."""
    return stream is not None and not stream.closed and stream.isatty()
