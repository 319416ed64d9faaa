"""The option that names a solver."""

from __future__ import annotations

import click

from ..solvers.names import NAMES

solver = click.option(
    "--solver",
    type=click.Choice(NAMES),
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"One solver by name: {', '.join(NAMES)}.",
)
