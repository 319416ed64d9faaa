"""The type of every argument that takes a profile file, or the name of a recorded profile in its place."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from .._data import shipped
from .._data.errors import UnknownProfile


class _ProfileType(click.Path):
    """A file, or the name of a recorded profile, which shells complete."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "-" or not shipped.is_name(value):
            return super().convert(value, parameter, context)
        try:
            shipped.locate(value)
        except UnknownProfile as error:
            self.fail(str(error), parameter, context)
        return value

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in shipped.names() if name.startswith(incomplete)]
        return [*found, *super().shell_complete(context, parameter, incomplete)]


profile_type = _ProfileType(exists=True, dir_okay=False, allow_dash=True)
