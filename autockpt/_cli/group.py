"""The group of verbs: wrong use, a closed pipe and an interrupt end in one line at most, and an exit status.

0    done
1    no plan meets what was asked, a check failed, the model cannot be recorded or planned, something is not installed
2    usage
130  interrupted, as shells count signals
141  whoever read our output has gone
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from .screen import tell

INTERRUPTED = 130
PIPE_CLOSED = 141


class Verbs(click.Group):
    """The verbs of ``autockpt``, each imported when it is asked for.

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

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a verb; where this is the whole programme, end it with an exit status."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            with _guarded():
                status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            status = error.exit_code
            with suppress(OSError):  # nobody is left to be told
                tell(f"Error: {_in_one_line(error)}")
        except click.exceptions.Exit as end:
            status = end.exit_code
        sys.exit(status if isinstance(status, int) else 0)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments; help is printed here."""
        with _guarded():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb that the arguments name."""
        with _guarded():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest one."""
        verbs = self.list_commands(ctx)
        if args[0] not in verbs and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], verbs, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(f"there is no verb {args[0]!r}; {hint}there are {', '.join(verbs)}")
        return super().resolve_command(ctx, args)


class _Interrupted(click.ClickException):
    exit_code = INTERRUPTED


@contextmanager
def _guarded() -> Iterator[None]:
    """End quietly where the reader of our output has gone or the user has had enough, before click does in its way."""
    try:
        yield
    except KeyboardInterrupt:
        raise _Interrupted("interrupted") from None
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        _drop_output()
        raise click.exceptions.Exit(PIPE_CLOSED) from None


def _drop_output() -> None:
    """Send what is still buffered nowhere, or the interpreter complains about it on its way out."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, none at all, or no file
            stream.flush()
            continue
        with suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _in_one_line(error: click.ClickException) -> str:
    """Return what an error says, and for one about the arguments where to read about them."""
    said = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        said += "" if said.endswith((".", "?")) else "."
        said += f" See {error.ctx.command_path} --help"
    return said
