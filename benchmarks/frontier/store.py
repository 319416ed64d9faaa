"""The raw results: a file for each size of the models, in which a run replaces its models' rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.models import Size

__all__ = ["load", "store"]


def load(folder: Path, size: Size) -> dict[str, Any]:
    """Return by model what was stored: its rows, its environment, and those of families that were run again."""
    path = _path(folder, size)
    models: dict[str, Any] = json.loads(path.read_text())["models"] if path.exists() else {}
    return models


def store(folder: Path, model: str, rows: list[dict[str, Any]], size: Size, *, again: bool = False) -> None:
    """Put a model's rows in place of those that were there: of all, or of the families that were run again."""
    models = load(folder, size)
    if again:
        families = dict.fromkeys(row["family"] for row in rows)
        others = [row for row in models[model]["rows"] if row["family"] not in families]
        environments = models[model].get("again", {}) | dict.fromkeys(families, environment())
        models[model] |= {"again": environments, "rows": [*others, *rows]}
    else:
        models[model] = {"environment": environment(), "rows": rows}
    path = _path(folder, size)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"models": models}, indent=1) + "\n")
    unfinished.replace(path)


def _path(folder: Path, size: Size) -> Path:
    return folder / ("results.json" if size == "small" else f"results-{size}.json")
