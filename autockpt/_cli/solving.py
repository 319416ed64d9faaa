"""The option that names a solver."""

from __future__ import annotations

from typing import Any

import click

from ..solvers.errors import UnknownSolver
from ..solvers.names import COUNTED, NAMES, counted


class SolverName(click.Choice[str]):
    """A solver's name, which may end in a number of layers: ``uniform:4``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or refuse it in one line."""
        if ":" not in str(value):
            return super().convert(value, param, ctx)
        try:
            counted(value)
        except UnknownSolver as error:
            self.fail(str(error), param, ctx)
        return value


solver = click.option(
    "--solver",
    type=SolverName(NAMES),
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"One solver by name: {', '.join(NAMES)}; or, for N layers, {' or '.join(f'{each}:N' for each in COUNTED)}.",
)
