"""Helpers of all pictures: figures that notebooks display, colours, notes, axes of bytes.

Imports matplotlib, an extra.
"""

from __future__ import annotations

import io
import math
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from ...solvers.units import format_bytes

MARKS = 6  # on an axis, at most

NOTEBOOK_DPI = 120
NOTEBOOK_WIDTH = 800  # columns of a notebook's page


class Picture(Figure):  # type: ignore[misc]  # matplotlib is not read by the type checker
    """A matplotlib figure that is not registered with pyplot, and that a notebook displays as the value of a cell."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=NOTEBOOK_DPI)
        size = self.get_size_inches()
        width = min(NOTEBOOK_WIDTH, int(size[0] * 100))
        return buffer.getvalue(), {"width": width, "height": round(width * size[1] / size[0])}


def ink() -> str:
    """Return the colour of text. It also suits lines that must be seen, since the user's style may be dark."""
    return str(rcParams["text.color"])


def axes_of(ax: Any) -> Any:
    """Return `ax`, or the axes of a new picture, without the frame lines at the top and right."""
    if ax is None:
        ax = Picture(figsize=(9, 4.6), layout="constrained").add_subplot()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def head(ax: Any, title: str, below: str) -> None:
    """Write a title, and below it a smaller line with what the picture shows."""
    ax.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=24)
    note(ax, below, (0, 1), (0, 8), across="left", xycoords="axes fraction", fontsize=9.5)


def note(
    ax: Any, text: str, at: tuple[float, float], offset: tuple[float, float], *, across: str, **style: Any
) -> None:
    """Write `text` at `offset` points from a place; `across` says which side of the text is aligned there."""
    ax.annotate(
        text,
        xy=at,
        xytext=offset,
        textcoords="offset points",
        horizontalalignment=across,
        annotation_clip=False,
        **{"fontsize": 9, **style},
    )


def legend(ax: Any, **given: Any) -> None:
    """Put a legend beside the picture."""
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, fontsize=9, **given)


def bytes_axis(axis: Any, highest_bytes: float, span_bytes: float | None = None) -> None:
    """Mark an axis of bytes at round numbers of the largest binary unit that fits.

    The axis goes from 0 to `highest_bytes`, or is `span_bytes` long if that is given.
    """
    unit = 1024 ** max(min(int(math.log(max(highest_bytes, 1), 1024)), 4), 0)
    least = (span_bytes or highest_bytes) / unit / MARKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= least)
    axis.set_major_locator(MultipleLocator(step * unit))
    axis.set_major_formatter(lambda value, _: _short(value))


def _short(value: float) -> str:
    """``1.5 GiB`` and not ``1.50 GiB``."""
    number, unit = format_bytes(round(value)).split()
    return f"{float(number):g} {unit}" if value else "0"
