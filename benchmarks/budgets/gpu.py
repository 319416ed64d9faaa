"""Train large models on a GPU that has no more memory than the budget: exceeding it is an out-of-memory error.

Each budget is a process of its own, in which ``torch.cuda.set_per_process_memory_fraction`` holds the allocator, with
all that it reserves, to the budget; the model gets nothing but ``autockpt.apply(model, budget)``. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autockpt
from benchmarks.environment import table, write

BUDGETS = 6
STEPS = 4
FOLDER = Path(__file__).parent / "gpu"

Built = tuple[nn.Module, dict[str, torch.Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--row", nargs=2, metavar=("MODEL", "BUDGET"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    if arguments.row:
        model, budget = arguments.row
        print(json.dumps(train(model, None if budget == "plain" else budget)))
        return
    rows = [row for model in arguments.models for row in run_model(model)]
    ran = [row for row in rows if "failure" not in row]
    errors = sorted(abs(row["error"]) for row in ran)
    worst = f"{errors[-1]:.2%}" if errors else "not known"
    summary = (
        f"{len(ran)} of {len(rows)} budgets trained {STEPS} steps with the device's memory limited to the budget; "
        f"|predicted − max_memory_allocated| / max_memory_allocated: worst {worst}."
    )
    heads = ["model", "budget", "predicted", "max_memory_allocated", "reserved", "segments", "failure"]
    write(FOLDER, {"rows": rows}, f"{summary}\n\n{table(heads, map(cells, rows))}")


def run_model(model: str) -> list[dict[str, Any]]:
    """Six budgets from the lowest that can be reached to what the plain step takes."""
    plain, least = in_process(model, "plain"), in_process(model, "lowest")
    for row in (plain, least):
        if "failure" in row:
            return [row]
    low, high = least["reserved_bytes"], plain["reserved_bytes"]
    return [in_process(model, str(low + (high - low) * i // (BUDGETS - 1))) for i in range(BUDGETS)]


def in_process(model: str, budget: str) -> dict[str, Any]:
    """Train in a process of its own; one that dies says of what in its row."""
    command = [sys.executable, "-m", "benchmarks.budgets.gpu", "--row", model, budget]
    settings = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    ended = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["it said nothing"]
        return {"model": model, "budget": budget, "failure": said[-1][:200]}
    row: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return row


def train(name: str, budget: str | None) -> dict[str, Any]:
    """Train for some steps, within a budget in bytes, at the lowest peak (``lowest``), or plain (None)."""
    limit = int(budget) if budget is not None and budget.isdigit() else None
    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    model.cuda().train()
    on_device = {key: value.cuda() for key, value in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    if budget is not None:
        autockpt.apply(model, limit or budget)
    for step in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            outputs = model(**on_device)
        outputs.loss.backward()
        optimizer.step()
        del outputs
        optimizer.zero_grad()
        if not step and limit is None:
            torch.cuda.reset_peak_memory_stats()  # of recording, which nothing limits here
    plan = autockpt.plan_of(model)
    measured = torch.cuda.max_memory_allocated()
    return {
        "model": name,
        "budget": budget or "plain",
        "predicted_bytes": plan.peak_bytes if plan else measured,
        "measured_bytes": measured,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "error": (plan.peak_bytes if plan else measured) / measured - 1,
        "segments": len(plan.segments) if plan else 0,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    if "failure" in row:
        return [row["model"], row["budget"], "", "", "", "", row["failure"]]
    sizes = [int(row["budget"]), row["predicted_bytes"], row["measured_bytes"], row["reserved_bytes"]]
    return [row["model"], *(f"{size / 2**30:.2f} GiB" for size in sizes), str(row["segments"]), ""]


def _tokens(vocabulary: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids}


def _images(batch: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(1000, (batch,))}


def _gpt2_large() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=36, n_embd=1280, n_head=20, use_cache=False)
    return GPT2LMHeadModel(config), _tokens(config.vocab_size, 8, 1024)


def _llama_1b() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=32000,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _tokens(config.vocab_size, 4, 2048)


def _resnet50() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000)), _images(128)


def _vit_large() -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000
    )
    return ViTForImageClassification(config), _images(64)


def _t5_large() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=1024,
        d_kv=64,
        d_ff=4096,
        num_layers=24,
        num_heads=16,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), _tokens(config.vocab_size, 8, 512)


MODELS: dict[str, Callable[[], Built]] = {
    "gpt2-large": _gpt2_large,
    "llama-1b": _llama_1b,
    "resnet50": _resnet50,
    "vit-large": _vit_large,
    "t5-large": _t5_large,
}


if __name__ == "__main__":
    main()
