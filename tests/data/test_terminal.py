"""What is said on a terminal, and what is not. Needs no torch."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from tests.doors import terminal

LOG = logging.getLogger("autockpt")


class Screen(io.StringIO):
    """A terminal. What pytest puts in other places as a test begins is put aside by `begin`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch

    def isatty(self) -> bool:
        return True

    def begin(self) -> None:
        """From now on it is stderr, and nobody has configured logging."""
        self._monkeypatch.setattr(sys, "stderr", self)
        logging.getLogger().handlers[:] = []
        LOG.handlers[:] = []
        LOG.setLevel(logging.NOTSET)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    handlers, level = LOG.handlers[:], LOG.level
    for name in ("AUTOCKPT_VERBOSITY", "RANK"):
        monkeypatch.delenv(name, raising=False)
    yield Screen(monkeypatch)
    LOG.handlers[:] = handlers
    LOG.setLevel(level)


def test_what_goes_on_is_said_once_and_warnings_too(screen: Screen) -> None:
    screen.begin()
    terminal.install()
    terminal.install()
    terminal.say("plan ready")
    LOG.info("a detail")
    LOG.warning("a %s", "warning")
    assert screen.getvalue() == "autockpt: plan ready\nautockpt: a warning\n"


def test_nothing_is_said_before_it_is_installed(screen: Screen) -> None:
    screen.begin()
    terminal.say("plan ready")
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("error", "an error"),
        ("warning", "a warning, an error"),
        ("info", "plan ready, a detail, a warning, an error"),
        ("DEBUG ", "plan ready, a detail, deeper, a warning, an error"),
        ("", "plan ready, a warning, an error"),
    ],
)
def test_the_environment_says_how_much(screen: Screen, monkeypatch: pytest.MonkeyPatch, level: str, said: str) -> None:
    screen.begin()
    monkeypatch.setenv("AUTOCKPT_VERBOSITY", level)
    terminal.install()
    terminal.say("plan ready")
    LOG.info("a detail")
    LOG.debug("deeper")
    LOG.warning("a warning")
    LOG.error("an error")
    assert screen.getvalue() == "".join(f"autockpt: {each}\n" for each in said.split(", "))


def test_a_word_that_is_no_level_is_told_once_with_those_that_are(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was ignored in silence."""
    screen.begin()
    monkeypatch.setenv("AUTOCKPT_VERBOSITY", "loud")
    terminal.install()
    terminal.install()
    terminal.say("plan ready")
    first, *rest = screen.getvalue().splitlines()
    assert first == "autockpt: AUTOCKPT_VERBOSITY=loud says nothing: it can be error, warning, info, debug"
    assert rest == ["autockpt: plan ready"]


def test_it_is_silent_where_logging_is_configured(screen: Screen) -> None:
    screen.begin()
    heard = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(heard)
    terminal.install()
    terminal.say("plan ready")
    LOG.warning("a warning")
    assert screen.getvalue() == ""
    assert heard.stream.getvalue() == "a warning\n"
    assert not LOG.handlers


def test_it_falls_silent_where_logging_is_configured_later(screen: Screen) -> None:
    screen.begin()
    terminal.install()
    heard = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(heard)
    LOG.setLevel(logging.INFO)
    terminal.say("plan ready")
    assert (screen.getvalue(), heard.stream.getvalue()) == ("", "plan ready\n")


def test_a_level_that_somebody_gave_the_logger_is_kept(screen: Screen) -> None:
    screen.begin()
    LOG.setLevel(logging.CRITICAL)
    terminal.install()
    terminal.say("plan ready")
    LOG.warning("a warning")
    assert (screen.getvalue(), LOG.level) == ("", logging.CRITICAL)


def test_elsewhere_than_on_a_terminal_warnings_are_said_and_that_there_is_a_plan(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under nohup, SLURM and in notebooks nobody was told that there was one."""
    screen.begin()
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    terminal.install()
    terminal.say("step 1 of 3")
    terminal.say("plan ready", everywhere=True)
    LOG.warning("a warning")
    assert piped.getvalue() == "autockpt: plan ready\nautockpt: a warning\n"
    monkeypatch.setattr(sys, "stderr", None)
    terminal.say("plan ready", everywhere=True)
    LOG.warning("nobody is there")


@pytest.mark.parametrize("how", ["a rank", "the environment", "a handler"])
def test_it_is_not_said_where_somebody_else_says_what_is(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    screen.begin()
    if how == "a rank":
        monkeypatch.setenv("RANK", "3")
    elif how == "the environment":
        monkeypatch.setenv("AUTOCKPT_VERBOSITY", "warning")
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    terminal.install()
    if how == "a handler":
        logging.getLogger().addHandler(logging.NullHandler())
    terminal.say("plan ready", everywhere=True)
    assert piped.getvalue() == ""


def test_one_process_of_several_speaks(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.begin()
    monkeypatch.setenv("RANK", "3")
    terminal.install()
    terminal.say("plan ready")
    assert screen.getvalue() == ""
