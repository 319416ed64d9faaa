"""The group of verbs: imports one when it is asked for, and turns an error into one line and an exit status."""

from __future__ import annotations

import difflib
import importlib
import sys
from contextlib import suppress
from typing import Any

import click

from ..solvers.errors import Infeasible, TooCostly
from .screen import tell, width

VERBS = {
    "demo": "Run a small GPT-2 plain and inside half its peak, and compare.",
    "doctor": "Say what is installed here, whether allocations are seen, and what is refused.",
    "explain": "Show what a plan does, what a frontier offers, or where the memory of a recorded step goes.",
    "fit": "Say which devices hold a training step, how much slower, and with how large a batch.",
    "frontier": "Show what each budget costs, from the plain peak down to the lowest at one level.",
    "profile": "Record what one training step of a model holds, when, and what each call costs.",
    "profiles": "List the recorded profiles of real models, usable by name.",
    "solve": "Choose what to recompute so that a recorded step fits a budget.",
    "verify": "Run a plain and a planned step, and compare all that they make, bit for bit.",
}
"""What each verb does, in a line. A verb is in the module of its name, which is imported when the verb is asked for."""


HELP_COLUMNS = 52
"""On a narrower terminal, click still makes help for one of so many columns, unless it is told the width."""


class Verbs(click.Group):
    """The verbs of ``autockpt``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb; None if there is none of that name."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(f".verbs.{cmd_name}", __package__), cmd_name)
        command.short_help = VERBS[cmd_name]  # zsh and fish show it
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(VERBS.items())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest one."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            ctx.fail(f"there is no verb {args[0]!r}; {hint}there are {', '.join(VERBS)}")
        return super().resolve_command(ctx, args)

    def main(self, args: Any = None, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run a verb; in standalone mode end the process with an exit status, and say errors on stderr."""
        if width() < HELP_COLUMNS:
            extra.setdefault("terminal_width", width() - 2)
        try:
            status = super().main(args, standalone_mode=False, **extra)
        except (click.Abort, click.ClickException) as error:
            if not standalone_mode:
                raise
            with suppress(OSError):  # nobody is left to be told
                for line in _lines(error):
                    tell(line)
            status = error.exit_code if isinstance(error, click.ClickException) else 130  # as shells count signals
        return sys.exit(status or 0) if standalone_mode else status


def _lines(error: click.Abort | click.ClickException) -> list[str]:
    """Return what an error says: in one line, or in its own lines if it lists figures."""
    cause = error.__cause__
    if isinstance(cause, (Infeasible, TooCostly)):
        return f"Error: {cause}".splitlines()
    return [f"Error: {_in_one_line(error)}"]


def _in_one_line(error: click.Abort | click.ClickException) -> str:
    """Return what an error says; if it is about the arguments, with the command that explains them."""
    if isinstance(error, click.Abort):
        return "interrupted"
    said = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        said += "" if said.endswith((".", "?")) else "."
        said += f" See {error.ctx.command_path} --help"
    return said
