"""The command as tests run it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import click

from tests.doors import cli_main

__all__ = ["VERBS", "Result", "Run", "imports_torch", "verb"]

VERBS = cli_main.list_commands(click.Context(cli_main))


class Result(NamedTuple):
    """What a command left: its exit status, and what it printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]
"""Runs the command with arguments, and with what `stdin` gives it."""


def verb(name: str) -> click.Command:
    """Return the command of a verb."""
    command = cli_main.get_command(click.Context(cli_main), name)
    assert command is not None
    return command


def imports_torch(arguments: list[str]) -> bool:
    """Whether a command, in a process of its own, fails or imports torch."""
    code = (
        "import sys\n"
        "from autockpt._cli import main\n"
        f"status = main({arguments!r}, standalone_mode=False)\n"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode != 0
