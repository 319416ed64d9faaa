"""What autockpt says by itself on a terminal, where nobody has configured logging. No torch.

nobody has configured logging    on a terminal: what `say` is given, and warnings; elsewhere warnings, and what has to
                                 be said once: that there is a plan
somebody has                     nothing of this: all goes to the logger ``autockpt``, and from there wherever they want
AUTOCKPT_VERBOSITY               error, warning, info or debug: the least that is shown, also where there is no terminal
"""

from __future__ import annotations

import logging
import os
import sys

VARIABLE = "AUTOCKPT_VERBOSITY"

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}

_log = logging.getLogger("autockpt")


class Terminal(logging.Handler):
    """Writes to stderr, whatever that is at the time.

    Args:
        asked: the level that the user asked for; None for what is said by itself.
    """

    def __init__(self, asked: int | None) -> None:
        super().__init__(asked or logging.NOTSET)
        self._asked = asked

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless somebody else's handlers have it."""
        if not _configured(self):
            self._write(record.getMessage())

    def tell(self, text: str, *, everywhere: bool) -> None:
        """Write what goes on, on a terminal or `everywhere`; one process of several does."""
        quiet = self._asked is not None or os.environ.get("RANK", "0") != "0" or _configured(self)
        if not quiet and sys.stderr is not None and (everywhere or sys.stderr.isatty()):
            self._write(text)

    def _write(self, text: str) -> None:
        if sys.stderr is not None and not sys.stderr.closed:
            sys.stderr.write(f"autockpt: {text}\n")
            sys.stderr.flush()


def install() -> None:
    """Say on a terminal what goes on from now on, where nobody has configured logging; again, it has no effect."""
    if _terminal() is None and not _configured(None):
        word = os.environ.get(VARIABLE, "").strip()
        asked = LEVELS.get(word.lower())
        if asked is not None:
            _log.setLevel(asked)
        _log.addHandler(Terminal(asked))
        if word and asked is None:
            _log.warning("%s=%.40s says nothing: it can be %s", VARIABLE, word, ", ".join(LEVELS))


def say(text: str, *, everywhere: bool = False) -> None:
    """Log what goes on, at level INFO, and say it on a terminal; or `everywhere`, as in a file or a notebook."""
    _log.info("%s", text)
    terminal = _terminal()
    if terminal is not None and not _log.isEnabledFor(logging.INFO):
        terminal.tell(text, everywhere=everywhere)


def _terminal() -> Terminal | None:
    return next((each for each in _log.handlers if isinstance(each, Terminal)), None)


def _configured(own: Terminal | None) -> bool:
    """Whether somebody has given logging a handler or our logger a level, other than we did."""
    others = [each for each in (*_log.handlers, *logging.getLogger().handlers) if not isinstance(each, Terminal)]
    return bool(others) or (own is None and _log.level != logging.NOTSET)
