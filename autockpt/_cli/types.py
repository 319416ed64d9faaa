"""What arguments may be, checked before the work begins, and how shells complete them."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from .._data.devices import DEVICES
from ..solvers.errors import UnknownSolver

PICTURES = (".png", ".svg", ".pdf")


class SolverName(StringParamType):
    """A solver."""

    name = "solver"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a name that no solver has, with the nearest."""
        from ..solvers.registry import named

        try:
            named(value)
        except UnknownSolver as error:
            self.fail(str(error), param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the solvers."""
        from ..solvers.registry import SOLVERS

        return _beginning(SOLVERS, incomplete)


class DeviceName(StringParamType):
    """A device whose roofline is known."""

    name = "device"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a device that has none."""
        if value not in DEVICES:
            self.fail(f"no roofline for device {value!r}; there are {', '.join(sorted(DEVICES))}", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the devices."""
        return _beginning(DEVICES, incomplete)


class TargetName(StringParamType):
    """A function, as ``file.py:function``; shells complete the file."""

    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer files."""
        return [CompletionItem(incomplete, type="file")]


class Seconds(click.FloatRange):
    """A time limit: above 0, and a number."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse what no clock reaches."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{seconds} is no number of seconds", param, ctx)
        return seconds


class OutputPath(click.Path):
    """A file to write, which can be: found out before the work begins, not after."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuse a path that cannot be written."""
        if value == "-":
            self.fail("'-' is no file to write; --json prints the document on stdout", param, ctx)
        path = super().convert(value, param, ctx)
        folder = Path(value).absolute().parent
        if not folder.is_dir():
            self.fail(f"the folder of {str(value)!r} does not exist", param, ctx)
        if not Path(value).exists():
            try:  # only trying tells for root, full disks and file systems that are read-only
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                self.fail(f"{str(value)!r} cannot be written: {error.strerror}", param, ctx)
        return path


class PicturePath(OutputPath):
    """A picture to write, in a format that its name ends in."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuse a path that cannot be written, or with another ending."""
        if Path(value).suffix.lower() not in PICTURES:
            self.fail(
                f"the name of a picture ends in {', '.join(PICTURES)}; that of {str(value)!r} does not", param, ctx
            )
        return super().convert(value, param, ctx)


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
