"""The group of verbs: imports one when it is asked for, and ends what goes wrong in one line and an exit status."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from .screen import tell

INTERRUPTED = 130
"""As shells count signals."""


class Verbs(click.Group):
    """The verbs of ``autockpt``.

    Args:
        verbs: what each does, in a line; it is the command of that name in the module of that name.
        settings: those of a group.
    """

    def __init__(self, *, verbs: Mapping[str, str], **settings: Any) -> None:
        super().__init__(**settings)
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs."""
        return sorted(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb; None where there is none of that name."""
        if cmd_name not in self._verbs:
            return None
        command: click.Command = getattr(importlib.import_module(f".{cmd_name}", __package__), cmd_name)
        command.short_help = self._verbs[cmd_name]  # zsh and fish show it
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self._verbs.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest one."""
        if args[0] not in self._verbs and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self._verbs, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            ctx.fail(f"there is no verb {args[0]!r}; {hint}there are {', '.join(sorted(self._verbs))}")
        return super().resolve_command(ctx, args)

    def main(self, args: Any = None, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run a verb; where this is the whole programme, end it with an exit status."""
        try:
            status = super().main(args, standalone_mode=False, **extra)
        except (click.Abort, click.ClickException) as error:
            if not standalone_mode:
                raise
            with suppress(OSError):  # nobody is left to be told
                tell(f"Error: {_in_one_line(error)}")
            status = error.exit_code if isinstance(error, click.ClickException) else INTERRUPTED
        return sys.exit(status or 0) if standalone_mode else status


def _in_one_line(error: click.Abort | click.ClickException) -> str:
    """Return what an error says, and for one about the arguments where to read about them."""
    if isinstance(error, click.Abort):
        return "interrupted"
    said = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        said += "" if said.endswith((".", "?")) else "."
        said += f" See {error.ctx.command_path} --help"
    return said
