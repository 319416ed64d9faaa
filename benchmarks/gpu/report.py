"""Tables of what the stages wrote: ``python -m benchmarks.gpu.report [FOLDER]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["differences", "table", "tables"]

GIB, MIB = 2**30, 2**20

NOTEWORTHY = {"seconds": 0.02, "overhead": 0.01}
"""Figures of these kinds differ from run to run: by so much (of the predicted seconds; of a plain step) unlisted."""

COLUMNS = 8
"""No table has more columns of figures; the JSON has all."""


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
    about = f"`{document['command']}`, {document['date']}, {document.get('seconds', 0):.0f} s: {ended} of {len(rows)} rows done."
    parts = [head, about, _figures(rows)]
    found = list(differences(rows))
    if found:
        parts += [
            "Not as predicted:",
            table(["row", "what", "predicted", "measured", "measured less predicted"], found),
        ]
    bad = [[row["name"], row["outcome"], row.get("error", "")] for row in rows if row["outcome"] != "done"]
    if bad:
        parts += ["Not done:", table(["row", "outcome", "said"], bad)]
    return "\n\n".join(parts)


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


def _figures(rows: list[dict[str, Any]]) -> str:
    """Return a table of what was measured, and of what was predicted where nothing was."""
    kept: dict[str, None] = {}
    for row in rows:
        kept.update(dict.fromkeys(name for name, value in _of(row).items() if isinstance(value, (int, float, str))))
    columns = sorted(kept, key=lambda name: _rank(name))[:COLUMNS]
    lines = [[row["name"], row["outcome"], *(_cell(name, _of(row).get(name)) for name in columns)] for row in rows]
    return table(["row", "outcome", *columns], lines)


def _of(row: dict[str, Any]) -> dict[str, Any]:
    published = row.get("predicted", {}).get("published", {})
    theirs = {f"published {name}": value for name, value in published.items() if isinstance(value, float)}
    return {**theirs, **row.get("predicted", {}), **row.get("measured", {})}


def _rank(name: str) -> int:
    """Order columns: peaks, overhead, bits, then the rest as it comes."""
    order = ("published", "plain_peak", "peak_bytes", "fits", "overhead", "verdict", "share", "throughput", "faster")
    return next((i for i, word in enumerate(order) if name.startswith(word)), len(order))


def _cell(what: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (bool, str)):
        return str(value)
    if what.split(" ")[0].endswith("_bytes"):
        return f"{value / GIB:.3f} GiB" if abs(value) >= GIB else f"{value / MIB:.3f} MiB"
    if "overhead" in what:
        return f"{value:.1%}"
    return f"{value:.4g}" + (" s" if "seconds" in what else "") if isinstance(value, float) else f"{value:,}"


def _where(document: dict[str, Any]) -> str:
    found = document["environment"]
    if "error" in found:
        return f"# {document['device']}: {found['error']}"
    devices = ", ".join(each["name"] for each in found["devices"]) or "CPU"
    settings = ", ".join(f"{name}={value}" for name, value in found["settings"].items()) or "none"
    versions = ", ".join(f"{name} {version}" for name, version in found["libraries"].items())
    return (
        f"# {devices if document['device'] == 'cuda' else 'CPU'}, {document['date'][:10]}\n\n"
        f"autockpt {found['autockpt']}, Python {found['python']}, torch {found['torch']}, CUDA {found['cuda']}, "
        f"driver {found['driver']}, {found['system']}, {found['cores']} cores; allocator settings: {settings}; {versions}."
    )


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Lay out a Markdown table."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '¦') for cell in row)} |" for row in rows)


if __name__ == "__main__":
    main()
