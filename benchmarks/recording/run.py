"""Time recording against plain steps, beside the frozen version of `make old`; record and solve a large GPT-2 XL.

That one has no memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

import autockpt
from benchmarks.environment import table, write

ROOT = Path(__file__).parents[2]
OLD = ROOT / ".venv-old" / "bin" / "python"
COST = Path(__file__).with_name("cost.py")

PROCESSES = 1
"""In turns, of each version and size."""


class Size(NamedTuple):
    """A step of a GPT-2 of 12 × 256."""

    batch: int
    tokens: int
    pairs: int

    @property
    def name(self) -> str:
        """What it trains on."""
        return f"GPT-2 12 × 256, batch {self.batch} × {self.tokens}"


SIZES = (Size(1, 96, 5), Size(2, 256, 3), Size(10, 256, 1))
"""Steps of about 0.1, 1 and 5 seconds."""

XL_BATCH, XL_TOKENS = 4, 1024
XL_BUDGETS = (0.8, 0.6, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    logging.set_verbosity_error()
    recording, xl = [time_recording(size, threads) for size in SIZES], time_xl()
    rows = []
    for each in recording:
        rows.append([f"plain step, {each['name']}", f"{each['plain_seconds']:.2f} s"])
        said = f"{each['new_ratio']:.2f}; {each['new_first']:.2f} the first in a process"
        frozen = f"(8cfb884: {each['old_ratio']:.2f}; {each['old_first']:.2f})"
        rows.append(["recording it / plain step, median of pairs", f"{said} {frozen}"])
    rows.append(["recording GPT-2 XL, 48 layers, fake mode", f"{xl['record_seconds']:.1f} s"])
    for row in xl["solved"]:
        gap = "unknown" if row["gap"] is None else f"{row['gap']:.1%}"
        what = f"`auto` at {row['budget']:.0%} of the plain peak"
        rows.append([what, f"{row['seconds']:.1f} s, recompute overhead {row['overhead']:.1%}, gap {gap}"])
    write(Path(__file__).parent, {"recording": recording, "gpt2_xl": xl}, table(["what", "measured"], rows))


def time_recording(size: Size, threads: int) -> dict[str, Any]:
    """Record steps of one size with both versions, each in processes of its own, in turns."""
    pairs: dict[str, list[list[float]]] = {"old": [], "new": []}
    for _ in range(PROCESSES):
        for version, python in (("old", OLD), ("new", Path(sys.executable))):
            numbers = (size.batch, size.tokens, size.pairs, threads)
            command = [str(python), *(["-I"] if version == "old" else []), str(COST), *map(str, numbers)]
            environ = os.environ | {"PYTHONPATH": str(ROOT)}
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environ).stdout
            pairs[version] += json.loads(said.splitlines()[-1])
    return {
        "name": size.name,
        "plain_seconds": statistics.median(plain for plain, _ in pairs["new"]),
        "pairs": pairs,
        **{f"{version}_ratio": _ratio(each) for version, each in pairs.items()},
        **{f"{version}_first": _ratio(each[:: size.pairs]) for version, each in pairs.items()},
    }


def _ratio(pairs: list[list[float]]) -> float:
    return statistics.median(record / plain for plain, record in pairs)


def time_xl() -> dict[str, Any]:
    """Record and solve a GPT-2 XL on the meta device."""
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(n_layer=48, n_embd=1600, n_head=25, use_cache=False)).train()
        ids = torch.zeros(XL_BATCH, XL_TOKENS, dtype=torch.long)
    began = time.perf_counter()
    profile = autockpt.profile(model, {"input_ids": ids, "labels": ids}, mode="fake")
    recorded = time.perf_counter()
    plain = autockpt.solve(profile, "1TB").peak_bytes
    solved = []
    for budget in XL_BUDGETS:
        start = time.perf_counter()
        plan = autockpt.solve(profile, int(plain * budget))
        solved.append(
            {
                "budget": budget,
                "seconds": time.perf_counter() - start,
                "segments": len(plan.segments),
                "overhead": plan.recompute_overhead,
                "gap": plan.choice_gap,
                "status": plan.status,
            }
        )
    return {"record_seconds": recorded - began, "plain_peak_bytes": plain, "solved": solved}


if __name__ == "__main__":
    main()
