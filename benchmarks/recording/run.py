"""Time recording against plain steps, and recording and solving a GPT-2 XL that has no memory."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

import autockpt
from benchmarks.environment import table, write

PAIRS = 5
XL_BATCH, XL_TOKENS = 4, 1024
XL_BUDGETS = (0.8, 0.6, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    logging.set_verbosity_error()
    recording, xl = time_recording(), time_xl()
    rows = [
        ["plain step, GPT-2 12 × 256, batch 8 × 256", f"{recording['plain_seconds']:.2f} s"],
        ["recording it (`gc.collect` apart)", f"{recording['record_seconds']:.2f} s"],
        ["recording / plain step, median of pairs", f"{recording['ratio']:.2f}"],
        ["recording GPT-2 XL, 48 layers, fake mode", f"{xl['record_seconds']:.1f} s"],
    ]
    for row in xl["solved"]:
        gap = "unknown" if row["gap"] is None else f"{row['gap']:.1%}"
        what = f"`auto` at {row['budget']:.0%} of the plain peak"
        rows.append([what, f"{row['seconds']:.1f} s, recompute overhead {row['overhead']:.1%}, gap {gap}"])
    write(Path(__file__).parent, {"recording": recording, "gpt2_xl": xl}, table(["what", "measured"], rows))


def time_recording() -> dict[str, Any]:
    """Record a GPT-2 of some size and run its plain step, in turns."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=12, n_embd=256, n_head=8, vocab_size=1024, n_positions=256, use_cache=False)
    model = GPT2LMHeadModel(config).train()
    ids = torch.randint(1024, (8, 256))
    batch = {"input_ids": ids, "labels": ids}

    def step() -> None:
        outputs = model(**batch)
        outputs.loss.backward()
        model.zero_grad()

    step()
    pairs = []
    for _ in range(PAIRS):
        plain = seconds(step)
        collect = seconds(gc.collect)
        pairs.append((plain, seconds(lambda: autockpt.profile(model, batch)) - collect))
    return {
        "pairs": pairs,
        "plain_seconds": statistics.median(plain for plain, _ in pairs),
        "record_seconds": statistics.median(record for _, record in pairs),
        "ratio": statistics.median(record / plain for plain, record in pairs),
    }


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


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
