"""Tables of what the stages wrote: ``python -m benchmarks.gpu.report [FOLDER]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["COLUMNS", "both", "device_of", "differences", "table", "tables"]

GIB, MIB = 2**30, 2**20

NOTEWORTHY = {"seconds": 0.02, "overhead": 0.01}
"""Figures of these kinds differ from run to run: by so much (of the predicted seconds; of a plain step) unlisted."""

NO_GPU = " (no GPU: nothing here is a result of one)"

PLAIN, OURS = ("plain_peak_bytes", "plain_seconds"), ("peak_bytes", "overhead")

FOUND = ("fits", "same bits", "warnings", "verdict")

MOVED = ("recompute", "moves", "moves, at any price", "the same, waited for")
"""Plans of stage 7; see `moved.py`."""

WAYS = ("plain", "torch, every block", "every block", "lowest")
"""Of a step whose time is looked at; see `busy.py`."""

COLUMNS: dict[int, tuple[str, ...]] = {
    0: (
        *("faster", "peak ratio", *OURS, "their overhead", "their_peak_bytes", "optimizer_step_bytes"),
        *("tokens_per_second", "their_tokens_per_second", "plain_tokens_per_second"),
        *(f"{way}: {what} seconds" for way in WAYS for what in ("step", "host")),
        *("recompute: overhead", "moves: overhead", "moves: verdict"),
    ),
    1: (
        *(
            "known tensor seen",
            "runtime events",
            "trace_seconds",
            "tensor_bytes",
            *FOUND,
            *OURS,
            *PLAIN,
            "budget_bytes",
        ),
        *("recorded_step_seconds", "timed_step_seconds", "planning_step_seconds", "recording_seconds"),
        *("solving_seconds", "launch_seconds", "launch_seconds recorded", "launch_seconds after", "trace_bytes"),
    ),
    2: (
        *("faster", "peak ratio", "tokens_per_second", "their_tokens_per_second", "batch_size", *FOUND, *OURS, *PLAIN),
        *("their_peak_bytes", "their overhead", "plain_tokens_per_second", "cap_bytes"),
    ),
    3: ("failed", "passed", "skipped", *FOUND, "recomputed", "forward streams", "replay streams", *OURS, *PLAIN),
    4: ("margin", "plain margin", *FOUND, *OURS, *PLAIN, "asked_bytes", "budget_bytes", "cap_bytes"),
    5: (*OURS, *PLAIN),
    6: (
        *("static_bytes", "added_bytes", "overhead at 60 %", "calls", "operators", "plain_seconds"),
        *("published share", "share", "reaches their share", "published overhead", *OURS),
        *("published throughput", "throughput", "published faster", "faster"),
    ),
    7: (
        *("there, bytes a second", "back, bytes a second", "budget_bytes"),
        *(f"{way}: {figure}" for way in MOVED for figure in ("verdict", *OURS)),
    ),
}
"""What the table of a stage shows; the JSON has more."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.report", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/gpu"))
    folder = parser.parse_args().folder
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("stage*.json"))]
    if not documents:
        parser.error(f"no stage*.json in {folder}; make gpu writes them")
    print("\n\n".join([_where(documents[0]), *map(tables, documents)]))


def tables(document: dict[str, Any]) -> str:
    """Return a stage as Markdown: its rows, then each figure that is not what was predicted, then what went wrong."""
    rows = document["rows"]
    ended = sum(row["outcome"] == "done" for row in rows)
    head = f"## Stage {document['stage']}: {document['title']}"
    took = f"{document.get('seconds', 0):.0f} s"
    about = (
        f"{device_of(document)}, {document['date']}, {took}: {ended} of {len(rows)} rows done. `{document['command']}`"
    )
    parts = [head, about, _figures(rows, COLUMNS[document["stage"]])]
    found = list(differences(rows))
    if found:
        parts += ["Not as predicted:", table(["row", "what", "predicted", "measured", "difference"], found)]
    bad = [[row["name"], row["outcome"], row.get("error", "")] for row in rows if row["outcome"] != "done"]
    if bad:
        parts += ["Not done:", table(["row", "outcome", "said"], bad)]
    return "\n\n".join(parts)


def device_of(document: dict[str, Any]) -> str:
    """Name what it ran on, so that nothing passes as a GPU's that is none."""
    real = document["device"] == "cuda" and document["environment"].get("cuda")
    return f"{document['device_name']}{'' if real else NO_GPU}"


def differences(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield every figure that was predicted and measured, and is not the same in both."""
    for row in rows:
        predicted, measured = row.get("predicted", {}), row.get("measured", {})
        for what in predicted:
            if what in measured and _differs(what, predicted[what], measured[what]):
                said = [_cell(what, predicted[what]), _cell(what, measured[what])]
                yield [row["name"], what, *said, _difference(what, predicted[what], measured[what])]


def _differs(what: str, predicted: Any, measured: Any) -> bool:
    if isinstance(predicted, float) and isinstance(measured, (int, float)):
        slack = next((slack for kind, slack in NOTEWORTHY.items() if kind in what), 0.0)
        return abs(measured - predicted) > slack * (predicted if "seconds" in what else 1.0)
    return bool(predicted != measured)


def _difference(what: str, predicted: Any, measured: Any) -> str:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (predicted, measured))
    if not numbers:
        return ""
    if "overhead" in what:
        return f"{100 * (measured - predicted):+.2f} points"
    share = f" ({measured / predicted - 1:+.3%})" if predicted else ""
    return f"{measured - predicted:+,}{share}" if isinstance(predicted, int) else f"{measured - predicted:+.4f}{share}"


def _figures(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    """Return a table of what was measured, with what was predicted in brackets; without columns that nothing fills."""
    cells = {name: [both(row, name) for row in rows] for name in columns}
    filled = [name for name in columns if any(cells[name])]
    lines = [[row["name"], *(cells[name][i] for name in filled)] for i, row in enumerate(rows)]
    return table(["row", *filled], lines)


def both(row: dict[str, Any], name: str) -> str:
    """Return a figure as it was measured, with what was predicted in brackets."""
    predicted, measured = row.get("predicted", {}), row.get("measured", {})
    whose, _, what = name.partition(" ")
    if whose == "published":
        return _cell(what, predicted.get("published", {}).get(what))
    expected = f"({_cell(name, predicted[name])})" if name in predicted else ""
    return " ".join(filter(None, [_cell(name, measured.get(name)), expected]))


def _cell(what: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (bool, str, list, dict)):
        return str(value)
    if what.split(" ")[0].endswith("_bytes"):
        return f"{value / GIB:.3f} GiB" if abs(value) >= GIB else f"{value / MIB:.3f} MiB"
    if "overhead" in what or what in ("faster", "margin"):
        return f"{value:.1%}"
    return f"{value:.4g}" + (" s" if "seconds" in what else "") if isinstance(value, float) else f"{value:,}"


def _where(document: dict[str, Any]) -> str:
    found = document["environment"]
    if "error" in found:
        return f"# {document['device']}: {found['error']}"
    settings = ", ".join(f"{name}={value}" for name, value in found["settings"].items()) or "none"
    versions = ", ".join(f"{name} {version}" for name, version in found["libraries"].items())
    machine = f"{found['system']}, {found['cores']} cores"
    return (
        f"# {device_of(document)}, {document['date'][:10]}\n\n"
        f"autockpt {found['autockpt']}, Python {found['python']}, torch {found['torch']}, CUDA {found['cuda']}, "
        f"driver {found['driver']}, {machine}; allocator settings: {settings}; {versions}. In brackets: predicted."
    )


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Lay out a Markdown table."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '¦') for cell in row)} |" for row in rows)


if __name__ == "__main__":
    main()
