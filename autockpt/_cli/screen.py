"""What a person sees: how wide, in which colours, and how far the work is.

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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

PIPED = 100  # columns where there is no terminal
WIDEST = 160  # lines longer than this are hard to read

_DECISION = re.compile(r"(?:^|  |(?:of|all) \d+ )(recomputed|partly)(?=(?:, [a-z ]+)?$)")
_COLOURS = {"recomputed": "yellow", "partly": "cyan"}
_BAD = re.compile(r"above the budget of|^FAILED:")
_SHARE = re.compile(r"([\d.]+)% of the budget")


def width() -> int:
    """Return the columns to fill: those of the terminal, or of COLUMNS; 100 where there is neither."""
    if os.environ.get("COLUMNS", "").isdecimal() or _is_terminal(sys.stdout):
        return min(shutil.get_terminal_size((PIPED, 24)).columns, WIDEST)
    return PIPED


def show(text: str, *, plain: bool = False) -> None:
    """Print a page on stdout; on a terminal headings, decisions and what is over the budget are coloured.

    Args:
        text: the page.
        plain: whether it is for programmes, and never coloured.
    """
    colours = not plain and _has_colours(sys.stdout)
    try:
        click.echo(_coloured(text) if colours else text, nl=False, color=colours)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise click.ClickException(f"cannot write to standard output: {error.strerror}") from error


def tell(line: str) -> None:
    """Say something on stderr in one line; on a terminal in as many as it takes without breaking words."""
    if _is_terminal(sys.stderr):
        line = textwrap.fill(line, max(_columns(sys.stderr), 20), break_on_hyphens=False)
    click.echo(line, err=True)


@contextmanager
def progress(what: str, *, limit_seconds: float | None = None, patience_seconds: float = 2.0) -> Iterator[None]:
    """Say on stderr that `what` is going on, once it takes long, where stderr is a terminal and no ``--json`` is asked.

    Args:
        what: the work, in words.
        limit_seconds: about how long it may take, for what is left of it.
        patience_seconds: after which it is said.
    """
    context = click.get_current_context(silent=True)
    for_programmes = context is not None and context.params.get("as_json")
    if for_programmes or not _is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        yield
        return
    done = threading.Event()
    started = time.perf_counter()

    def tick() -> None:
        shown = ""
        wait = patience_seconds
        while not done.wait(wait):
            seconds = time.perf_counter() - started
            said = f"{what} … {seconds:.0f} s"
            if limit_seconds is not None and seconds < limit_seconds:
                said += f", up to {max(limit_seconds - seconds, 1):.0f} s left"
            # A line that fills the last column, or more, could not be taken back.
            fitted = _fitted(said, _columns(sys.stderr) - 1)
            click.echo(f"\r{fitted.ljust(len(shown))}", err=True, nl=False)
            shown = fitted
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


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; it is None where the caller has closed it."""
    return stream is not None and not stream.closed and stream.isatty()


def _has_colours(stream: TextIO | None) -> bool:
    """Whether to colour a stream: https://no-color.org says where not, FORCE_COLOR and CLICOLOR_FORCE say where."""
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return _is_terminal(stream) and os.environ.get("TERM") != "dumb" and os.environ.get("CLICOLOR") != "0"


def _columns(stream: TextIO) -> int:
    if os.environ.get("COLUMNS", "").isdecimal():
        return int(os.environ["COLUMNS"])
    try:
        return os.get_terminal_size(stream.fileno()).columns or PIPED
    except (OSError, ValueError):
        return PIPED


def _fitted(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: max(columns - 1, 0)] + "…"


def _coloured(text: str) -> str:
    """Colour a page: its first block and the headings of the others, decisions, and what is over the budget."""
    blocks = [block.split("\n") for block in text.split("\n\n")]
    coloured = []
    for i, lines in enumerate(blocks):
        headings = len(lines) if i == 0 else _headings(lines)
        styled = [click.style(line, bold=True, fg="red" if _is_bad(line) else None) for line in lines[:headings]]
        coloured.append("\n".join([*styled, *map(_coloured_line, lines[headings:])]))
    return "\n\n".join(coloured)


def _headings(lines: list[str]) -> int:
    """How many lines of a block are its heading: those above a table's columns, or one above what is indented."""
    rule = next((i for i, line in enumerate(lines) if line.startswith("---")), None)
    if rule is not None:
        return rule - 1
    return int(len(lines) > 1 and not lines[0].startswith(" ") and (lines[1].startswith("  ") or "┤" in lines[1]))


def _is_bad(line: str) -> bool:
    """Whether a line says that a budget is not met, or that a check failed."""
    share = _SHARE.search(line)
    return bool(_BAD.search(line) or (share and float(share[1]) > 100))


def _coloured_line(line: str) -> str:
    if _is_bad(line):
        return click.style(line, fg="red")
    if line.startswith("---"):
        return click.style(line, dim=True)
    found = _DECISION.search(line)
    if found is None:
        return line
    start, end = found.span(1)
    return line[:start] + click.style(found[1], fg=_COLOURS[found[1]]) + line[end:]
