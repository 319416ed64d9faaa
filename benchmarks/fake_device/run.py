"""Train models within budgets on the fake CUDA device, and try every tool there.

Nothing that ran on it is a result of a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import torch

from tests.fake_cuda import bindings

bindings.install()  # before transformers is imported, which remembers what devices it found

from benchmarks.environment import environment, table, write_parts  # noqa: E402
from benchmarks.fake_device.rows import ROWS, WORKSPACES, measure  # noqa: E402
from benchmarks.fake_device.tools import TOOLS, measure_tool  # noqa: E402

HERE = Path(__file__).parent
LEAST, MOST = 0.995, 1.0
"""Predicted over measured peak, as it is wanted."""

Rows = dict[str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose 'model, situation' matches; the others stay as they are")
    only = re.compile(parser.parse_args().only)
    torch.set_num_threads(1)
    tools = [(model, tool) for tool, (_, models) in TOOLS.items() for model in models]
    for part, rows, run in (("training", ROWS, measure), ("tools", tools, measure_tool)):
        for model, what in rows:
            if only.search(f"{model}, {what}"):
                began = time.perf_counter()
                for workspace, size in WORKSPACES.items():
                    _store(part, model, what, workspace, run(model, what, size))
                print(f"{model}, {what}: {time.perf_counter() - began:.0f} s", flush=True)
    write_parts(HERE, {"training": training_table, "tools": tools_table})


def _store(part: str, model: str, what: str, workspace: str, row: dict[str, Any]) -> None:
    file = HERE / f"{part}.json"
    raw = json.loads(file.read_text()) if file.exists() else {"rows": {}}
    raw["rows"].setdefault(f"{model}, {what}", {})[workspace] = row
    raw["environment"] = environment()
    file.write_text(json.dumps(raw, indent=1) + "\n")


def training_table(rows: Rows) -> str:
    """Lay out the rows of training runs."""
    heads = ["model, situation"]
    for workspace in WORKSPACES:
        heads += [f"{workspace}: bit for bit", "within budget", "predicted / measured", "warnings"]
    lines = []
    for name, row in rows.items():
        cells = [name]
        for workspace in WORKSPACES:
            cells += _training_cells(row[workspace])
        lines.append([*cells, "; ".join(sorted({short for each in row.values() for short in falls_short(each)}))])
    return table([*heads, "falls short"], lines)


def _training_cells(row: dict[str, Any]) -> list[str]:
    if row.get("error"):
        return ["failed", "", "", str(len(row["said"]))]
    steps = len(row["exact"])
    return [
        f"{sum(row['exact'])} of {steps}",
        f"{sum(row['within'])} of {steps}",
        "no plan" if row["foretold"] is None else f"{row['foretold']:.4f}",
        str(len(row["said"])),
    ]


def falls_short(row: dict[str, Any]) -> list[str]:
    """Say where a row is not as it should be."""
    if row.get("error"):
        return [str(row["error"]).partition("\n")[0][:120]]
    found = []
    if not all(row["exact"]):
        found.append("not the plain bits")
    if not all(row["within"]):
        above = max(row["peaks"]) / row["budget_bytes"] - 1
        found.append(f"{100 * above:.1f} % above the budget")
    if row["foretold"] is not None and not LEAST <= row["foretold"] <= MOST + 5e-5:
        found.append("over-predicted" if row["foretold"] > 1 else "under-predicted")
    if row["foretold"] is None:
        found.append("trains without a plan, and says so" if row["said"] else "no one plan")
    return found


def tools_table(rows: Rows) -> str:
    """Lay out the rows of tools."""
    lines = []
    for name, row in rows.items():
        cells, short, said = [name], set(), set()
        for workspace in WORKSPACES:
            found = row[workspace]
            holds, ratios = found["holds"], list(found["foretold"].values())
            cells += [f"{sum(holds.values())} of {len(holds)}", _between(ratios)]
            short |= {f"not: {each}" for each, held in holds.items() if not held}
            off = [each for each, ratio in found["foretold"].items() if not LEAST <= ratio <= MOST + 5e-5]
            short |= {f"{workspace}: {each} off" for each in off}
            short |= {found["error"][:120]} if found["error"] else set()
            said.add(found["notes"])
        lines.append([*cells, "; ".join(sorted(short)), "; ".join(sorted(said - {""}))])
    heads = [head for each in WORKSPACES for head in (f"{each}: holds", "predicted / measured")]
    return table(["model, tool", *heads, "falls short", "notes"], lines)


def _between(ratios: list[float]) -> str:
    if not ratios:
        return ""
    low, high = f"{min(ratios):.4f}", f"{max(ratios):.4f}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
