"""The option that names a solver, by itself: knowing the solvers takes importing them, which help need not wait for."""

from __future__ import annotations

import click

from ..solvers.registry import SOLVERS

solver = click.option(
    "--solver",
    type=click.Choice(sorted(SOLVERS)),
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"One solver by name: {', '.join(sorted(SOLVERS))}.",
)
