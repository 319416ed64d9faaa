"""Pictures that benchmarks draw of their points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["new_picture", "save"]


def new_picture() -> tuple[Any, Any]:
    """Return a figure and its axes, of the size that all pictures have; nothing is shown on a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7, 4.5), dpi=80)


def save(figure: Any, axes: Any, path: Path) -> None:
    """Write a picture with its grid and legend, and let go of it."""
    from matplotlib import pyplot

    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
