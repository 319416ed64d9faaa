"""README and plots from the stored rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import RESULTS, table
from benchmarks.frontier.analysis import Comparison, Row, Summary, compare_rows, summarise
from benchmarks.frontier.derive import standard_error
from benchmarks.frontier.plot import plot
from benchmarks.frontier.store import load
from benchmarks.models import SIZES, TRANSFORMERS, Size

__all__ = ["write_report"]

_TITLES: dict[Size, str] = {"small": "Small models", "large": "Large models", "gpu": "On a GPU"}
_SUFFIXES: dict[Size, str] = {"small": "", "large": ", large", "gpu": ", on a GPU"}

PAIRS = [("time", "eager"), ("time", "compile"), ("FLOPs", "eager"), ("FLOPs", "compile")]


def write_report(folder: Path) -> None:
    """Write the README's part after its marker, and a plot for each model, from what is stored."""
    parts = []
    for size in SIZES:
        models = load(folder, size)
        if models:
            parts.append(_section(folder, models, size))
    readme = folder / "README.md"
    head = readme.read_text().partition(RESULTS)[0]
    readme.write_text(f"{head}{RESULTS}\n\n" + "\n\n".join(parts) + "\n")


def _section(folder: Path, models: dict[str, Any], size: Size) -> str:
    compared = {name: compare_rows(stored["rows"]) for name, stored in models.items()}
    summaries = {name: summarise(found) for name, found in compared.items()}
    transformers = [found for name in TRANSFORMERS for found in compared.get(name, [])]
    lines = [_summary_cells(name, summary) for name, summary in summaries.items()]
    lines.append(_summary_cells("**transformers**", summarise(transformers)))
    heads = ["model", "points, good", "reached by eager, compile", *(f"{axis}: ours / {who}" for axis, who in PAIRS)]
    parts = [f"## {_TITLES[size]}", table([*heads, "worst prediction, pp"], lines)]
    for name, stored in models.items():
        picture = f"plots/{name}{'' if size == 'small' else f'-{size}'}.png"
        plot(folder / picture, name, stored["rows"])
        parts += [f"### {name}{_SUFFIXES[size]}", f"![{name}]({picture})", _ran(stored["environment"])]
        parts += [f"{family} again: {_ran(where)}" for family, where in stored.get("again", {}).items()]
        parts.append(_points(stored["rows"], compared[name]))
    return "\n\n".join(parts)


def _ran(where: dict[str, Any]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in where.items() if key != "command")
    return f"`{where['command']}`: {said}."


def _summary_cells(name: str, summary: Summary) -> list[str]:
    reached = ", ".join(str(summary.reached[rival]) for rival in ("eager", "compile"))
    means = [summary.means[pair] for pair in PAIRS]
    worst = summary.worst_prediction
    return [
        name,
        f"{summary.points}, {summary.good}",
        reached,
        *("–" if mean is None else f"{mean:.2f}" for mean in means),
        "–" if worst is None else f"{100 * worst:.1f}",
    ]


def _points(rows: Sequence[Row], comparisons: Sequence[Comparison]) -> str:
    heads = ["method", "peak", "time", "pairs", "FLOPs", "loss", "gradients", "buffers", "asked", "met", "planning"]
    compared = {id(one.row): one for one in comparisons}
    lines = []
    for _, group in itertools.groupby(rows, lambda row: (row["family"], row["error"]) if "error" in row else id(row)):
        first, *others = group
        settings = ", ".join(row["setting"] for row in (first, *others))
        lines.append(_cells(first, f"{first['family']} {settings}".strip(), compared.get(id(first))))
    return table([*heads, "predicted", "eager there", "compile there"], lines)


def _cells(row: Row, name: str, comparison: Comparison | None) -> list[str]:
    if "error" in row:
        return [name, _escaped(row["error"]), *[""] * 12]
    time, gradients = row["time"], row["gradients"]
    asked = row.get("asked_ratio")
    return [
        f"{name}: FAILED, {row['failure']}" if "failure" in row else name,
        f"{row['peak_ratio']:.3f}",
        f"{time['ratio']:.3f} ± {standard_error(time['quartiles'], time['pairs']):.3f}",
        str(time["pairs"]),
        f"{row['flops_ratio']:.3f}",
        row["loss"],
        gradients if gradients == "equal" else f"{gradients}, {row['gradient_error']:.0e}",
        row["buffers"],
        f"{asked:.2f}" if asked is not None else f"{row['asked_bytes'] / 1e6:.1f} MB" if "asked_bytes" in row else "",
        {True: "yes", False: "NO", None: ""}[row.get("met")],
        f"{row['planning_seconds']:.1f} s" if "planning_seconds" in row else "",
        f"{row['predicted_overhead']:+.1%}" if "predicted_overhead" in row else "",
        *(_there(comparison, rival) for rival in ("eager", "compile")),
    ]


def _there(comparison: Comparison | None, rival: str) -> str:
    if comparison is None:
        return ""
    theirs = comparison.theirs["time", rival]
    return "not reached" if theirs is None else f"{theirs:+.1%}, ratio {comparison.ratios['time', rival]:.2f}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
