"""What the pictures share: figures that show themselves in notebooks, colours, axes of bytes and of seconds.

Imports matplotlib, an extra: import this module only where `require_matplotlib` has been called.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from ...solvers.units import format_bytes, format_seconds

COLOURS = {
    "static": "#bbbbbb",
    "gradients": "#4477aa",
    "activations and outputs": "#66ccee",
    "boundaries": "#ccbb44",
    "restored": "#ee6677",
    "transients": "#aa3377",
}
"""By what stands, as the chart of text names it. They differ for colour-blind eyes too: the scheme is Paul Tol's."""

MARKS = 6  # on an axis, at most

NOTEBOOK_DPI = 120
NOTEBOOK_WIDTH = 800  # columns of a notebook's page


class Picture(Figure):  # type: ignore[misc]  # matplotlib is not read by the type checker
    """A matplotlib figure that pyplot knows nothing of, and that a notebook shows as the value of a cell."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=NOTEBOOK_DPI)
        size = self.get_size_inches()
        width = min(NOTEBOOK_WIDTH, int(size[0] * 100))
        data = {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": repr(self)}
        return data, {"image/png": {"width": width, "height": round(width * size[1] / size[0])}}


def ink() -> str:
    """Return the colour of text, in which lines stand out too: the user's style may be dark."""
    return str(rcParams["text.color"])


def axes_of(ax: Any, *, height: float) -> Any:
    """Return `ax`, or the axes of a new picture so many inches high."""
    if ax is not None:
        return ax
    return Picture(figsize=(9, height), layout="constrained").add_subplot()


def head(ax: Any, title: str, below: str) -> None:
    """Write a title, and what the picture says in a smaller line below it."""
    ax.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=24)
    ax.annotate(
        below,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 8),
        textcoords="offset points",
        fontsize=9.5,
        annotation_clip=False,
    )


def bytes_axis(axis: Any, highest_bytes: float, span_bytes: float | None = None) -> None:
    """Mark an axis of bytes, from 0 or so long, in round numbers of the largest binary unit that fits."""
    span_bytes = span_bytes or highest_bytes
    unit = 1024 ** max(min(int(math.log(max(highest_bytes, 1), 1024)), 4), 0)
    axis.set_major_locator(MultipleLocator(_round_step(span_bytes / unit / MARKS) * unit))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _round_step(least: float) -> float:
    """The least of 1, 2, 5, 10, 20, ... and 0.1, 0.2, 0.5, ... that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least)


def seconds_axis(axis: Any) -> None:
    """Mark an axis of seconds in readable units."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value) if value else "0"))


def _short(value: float) -> str:
    """``1.5 GiB`` and not ``1.50 GiB``."""
    number, unit = format_bytes(round(value)).split()
    return f"{float(number):g} {unit}" if value else "0"
