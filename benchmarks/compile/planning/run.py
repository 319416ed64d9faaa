"""Time what a plan for compiled code takes: tracing, reading, solving; seconds of the processor, and memory.

python -m benchmarks.compile.planning                      # both models; --models small for one
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compile.steps import trained
from benchmarks.environment import environment, table, write
from tests.doors import compiled_plan_within, lowest_compiled_plan, prepare_joint_graphs, trace_joint_graphs
from tests.zoo import Case

FOLDER = Path(__file__).parent
SHAPES = {"xl": (48, 1600, 25, 1024), "small": (12, 768, 12, 64)}
"""By model: layers, width, heads and tokens."""

SHARE = 0.5
"""The budget is so far from our lowest peak to that of the plain step."""


def build(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Build a GPT-2 of which no weight is written, and a batch of one text."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads, tokens = SHAPES[name]
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False)
    with torch.device("meta"):
        model: Any = GPT2LMHeadModel(config).train()
    model.to_empty(device="cpu").tie_weights()
    ids = torch.zeros(1, tokens, dtype=torch.long)
    return model, {"input_ids": ids, "labels": ids.clone()}


def planned(name: str) -> dict[str, Any]:
    """Trace, read and solve one model, by `aot_eager`."""
    torch.set_num_threads(1)
    model, batch = build(name)
    marks = [time.process_time()]

    def lap() -> float:
        marks.append(time.process_time())
        return marks[-1] - marks[-2]

    graphs, links = trace_joint_graphs(model, kwargs=batch)
    found: dict[str, Any] = {"trace_seconds": lap()}
    prepared = prepare_joint_graphs(graphs, links)
    found["read_seconds"] = lap()
    lowest = lowest_compiled_plan(prepared)
    found["lowest_seconds"] = lap()
    budget = int(lowest.peak_bytes + SHARE * (lowest.plain_peak_bytes - lowest.peak_bytes))
    plan = compiled_plan_within(prepared, budget)
    found["budget_seconds"] = lap()
    return found | {
        "operators": len(prepared.step.forward),
        "candidates": len(prepared.stated.problem.candidates),
        "plain_bytes": lowest.plain_peak_bytes,
        "lowest_bytes": lowest.peak_bytes,
        "peak_bytes": plan.peak_bytes,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def compiled(name: str) -> float:
    """Return what the first step of a compiled plain model takes longer than its third."""
    torch.set_num_threads(1)
    model, batch = build(name)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return trained(Case(model, batch), torch.compile(model, backend="aot_eager")).compile_seconds


def show(raw: dict[str, Any]) -> str:
    """Return the rows as a table."""
    heads = ["GPT-2", "operators", "candidates", "traced, s", "read, s", "lowest, s", "half way, s", "resident, GiB"]
    keys = ("trace_seconds", "read_seconds", "lowest_seconds", "budget_seconds")
    rows = []
    for name, row in raw["rows"].items():
        resident, compiling = row["resident_bytes"] / 2**30, row.get("compile_seconds")
        seconds = [*(f"{row[key]:.1f}" for key in keys), f"{resident:.2f}", f"{compiling:.1f}" if compiling else ""]
        rows.append([name, row["operators"], row["candidates"], *seconds])
    return table([*heads, "torch compiles, s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*SHAPES], choices=[*SHAPES])
    asked, file, alone = parser.parse_args(), FOLDER / "results.json", multiprocessing.get_context("spawn")
    raw = json.loads(file.read_text()) if file.exists() else {"rows": {}}
    raw["environment"] = environment()
    for name in asked.models:
        with ProcessPoolExecutor(1, mp_context=alone) as pool:
            raw["rows"][name] = pool.submit(planned, name).result()
        if name == "small":
            with ProcessPoolExecutor(1, mp_context=alone) as pool:
                raw["rows"][name]["compile_seconds"] = pool.submit(compiled, name).result()
        write(FOLDER, raw, show(raw))
        print(show(raw), flush=True)


if __name__ == "__main__":
    main()
