"""The command ``autockpt``. Imports no torch until a command has to run a model."""

from __future__ import annotations

import click

from .. import __version__

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Train PyTorch models inside a memory budget.

    Exit status: 0 done, 1 infeasible or a failed check, 2 usage (also files that cannot be read).
    """
