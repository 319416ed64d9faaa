"""Train compiled models under budgets, and compare peaks with predictions and gradients with the compiled plain step.

python -m benchmarks.compile.run                        # all models by aot_eager; --models gpt2 unet for some
python -m benchmarks.compile.run --backend inductor     # the same by inductor, which takes a C++ compiler
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt import Infeasible
from benchmarks.compile.steps import difference, equal, plan_on, static_bytes, trained
from benchmarks.environment import environment, table, write
from tests.zoo import SHORT, build

FOLDER = Path(__file__).parent
SHARES = (0.8, 0.6, 0.4)
"""Budgets, as shares of what the compiled plain step adds."""

BACKENDS = {"aot_eager": "rows", "inductor": "inductor"}
"""The backends, each with the key of its rows."""


def rows(name: str, backend: str) -> dict[str, Any]:
    """Train one model compiled, plain and under each budget."""
    case = build(name, short=True)
    torch.compiler.reset()
    compiled: Any = torch.compile(case.model, backend=backend)
    unplanned = trained(case, compiled)
    plain = unplanned.last_bytes
    found: dict[str, Any] = {"plain_bytes": plain, "plain_first_bytes": unplanned.first_bytes}
    for share in SHARES:
        case = build(name, short=True)
        torch.compiler.reset()
        compiled, static = torch.compile(case.model, backend=backend), static_bytes(case)
        began = time.process_time()
        try:
            autockpt.apply(compiled, static + int(share * plain), inputs=case.kwargs)
        except Infeasible as error:
            found[str(share)] = {"lowest_bytes": error.minimum_bytes - static}
            continue
        planning_seconds = time.process_time() - began
        seen = trained(case, compiled)
        found[str(share)] = {
            "budget_bytes": int(share * plain),
            "first_bytes": seen.first_bytes,
            "measured_bytes": seen.last_bytes,
            "predicted_bytes": plan_on(compiled).peak_bytes - static,
            "tried": len(plan_on(compiled).tried_bytes),
            "equal": equal(seen.left, unplanned.left),
            "loss_equal": torch.equal(seen.left[0], unplanned.left[0]),
            "relative_difference": max(map(difference, seen.left, unplanned.left)),
            "planning_cpu_seconds": planning_seconds,
        }
    return found


def show(raw: dict[str, Any]) -> str:
    """Return the rows as tables."""
    found = []
    for backend, key in BACKENDS.items():
        if raw.get(key):
            found.append(f"Backend `{backend}`:\n\n{_table(raw[key])}")
    return "\n\n".join(found)


def _table(models: dict[str, Any]) -> str:
    lines = []
    for name, found in models.items():
        for share in map(str, SHARES):
            row = found[share]
            lowest = row.get("lowest_bytes")
            if lowest is not None:
                lines.append([name, share, f"infeasible: {lowest / found['plain_bytes']:.3f}", "", "", "", "", ""])
                continue
            parts = [row[key] / found["plain_bytes"] for key in ("predicted_bytes", "measured_bytes", "first_bytes")]
            within = "yes" if max(row["measured_bytes"], row["first_bytes"]) <= row["budget_bytes"] else "no"
            apart = row.get("relative_difference", 0.0)
            equal = "yes" if row["equal"] else f"{apart:.1e}, loss {'equal' if row['loss_equal'] else 'not'}"
            lines.append([name, share, *(f"{part:.4f}" for part in parts), within, equal, str(row.get("tried", 0))])
    heads = ["model", "budget", "predicted", "measured", "first step", "within", "bits equal", "codes tried"]
    return table(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*SHORT])
    parser.add_argument("--backend", choices=[*BACKENDS], default="aot_eager")
    asked, torch_threads = parser.parse_args(), torch.get_num_threads()
    torch.set_num_threads(1)
    file = FOLDER / "results.json"
    key = BACKENDS[asked.backend]
    raw = json.loads(file.read_text()) if file.exists() else {}
    if asked.models == [*SHORT]:
        raw.pop(key, None)
    raw["environment"] = environment()
    for name in asked.models:
        found = raw.setdefault(key, {})[name] = rows(name, asked.backend)
        print(show({key: {name: found}}), flush=True)
        write(FOLDER, raw, show(raw))
    torch.set_num_threads(torch_threads)


if __name__ == "__main__":
    main()
