"""How documents and results come by their pages and pictures: the one place left of `_show` that loads it, by name."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from ..errors import MissingExtra


class Document:
    """Base without fields of what shows itself as text, and as HTML in notebooks.

    Attributes:
        PAGE: the function in `_show` that makes the page, as ``explain.plan.plan_page``.
        BRIEF: the one that makes the short page, where there is one.
    """

    __slots__ = ()

    PAGE: ClassVar[str]
    BRIEF: ClassVar[str] = ""

    def __str__(self) -> str:
        """Return the short page, or the page where there is no shorter one."""
        page = self._shown(self.BRIEF, by=".explain()") if self.BRIEF else self._page()
        text: str = page.text()
        return text.rstrip("\n")

    def explain(self) -> str:
        """Return what it says as text, for people."""
        text: str = self._page().text()
        return text

    def _page(self, *given: object) -> Any:
        """Return the page of this document, as a `Page` of `_show`."""
        return self._shown(self.PAGE, *given)

    def _shown(self, function: str, *given: object, **options: object) -> Any:
        """Return what `function` in `_show` makes of this document."""
        module, _, name = function.rpartition(".")
        return getattr(importlib.import_module(f"..._show.{module}", __package__), name)(self, *given, **options)

    def _drawn(self, function: str, *given: object) -> Any:
        """Return the figure that `function` in `_show/pictures` draws of this document."""
        require_matplotlib()
        return self._shown(f"pictures.{function}", *given)

    def _repr_html_(self) -> str:
        html: str = self._page().html()
        return html

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.explain())  # IPython's text beside HTML, where all fields would fill pages


def require_matplotlib() -> None:
    """Raise MissingExtra where matplotlib cannot be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            'pictures are drawn by matplotlib, which is not installed; install it by: pip install "autockpt[plot]"'
        ) from error
