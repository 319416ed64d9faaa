"""Train a model above a gigabyte, plain or under a budget, and print how far resident memory rose in each step.

    python -m benchmarks.in_place.large MODEL [BUDGET]

The rise counts from before the model was made, so that all of it is in: weights, batch, gradients, the optimizer, and
what the library itself loads. What transformers loads for its models is not: it is imported before.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import autockpt
from benchmarks.in_place.allocator import Allocator
from benchmarks.in_place.worker import listen, outside
from tests.zoo import UNet, gpt2

STEPS = 6

Built = tuple[nn.Module, dict[str, Any]]


def main(name: str, budget_bytes: str = "") -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    said, allocator = listen(), Allocator()
    warm = nn.Linear(8, 8)
    warm(torch.zeros(8, 8)).sum().backward()
    torch.optim.AdamW(warm.parameters()).step()
    gc.collect()
    base_bytes, beside_bytes = _resident_bytes("VmRSS"), allocator.level_bytes()
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    if budget_bytes:
        autockpt.apply(model.train(), int(budget_bytes))
    optimizer: torch.optim.Optimizer | None = None
    found: dict[str, Any] = {"resident_bytes": [], "start_bytes": [], "peak_bytes": [], "planned": []}
    try:
        for _ in range(STEPS):
            Path("/proc/self/clear_refs").write_text("5")  # the highest level begins anew
            allocator.begin()
            found["start_bytes"].append(allocator.level_bytes() - beside_bytes)
            loss = outside(model(**batch))
            optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found["resident_bytes"].append(_resident_bytes("VmHWM") - base_bytes)
            found["peak_bytes"].append(allocator.peak_bytes() - beside_bytes)
            found["planned"].append(autockpt.plan_of(model) is not None)
    except autockpt.AutockptError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found | {"said": said}))


def _gpt2() -> Built:
    model = gpt2(vocab_size=1000, n_layer=12, n_embd=128, n_positions=256)
    return model, {"input_ids": torch.randint(1000, (64, 256))}


def _vit() -> Built:
    config = ViTConfig(hidden_size=128, num_hidden_layers=12, num_attention_heads=4, intermediate_size=512)
    return ViTForImageClassification(config), {"pixel_values": torch.randn(64, 3, 224, 224)}


def _convolutions() -> Built:
    return UNet(), {"image": torch.randn(16, 3, 256, 256)}


MODELS: dict[str, Callable[[], Built]] = {"gpt2": _gpt2, "vit": _vit, "convolutions": _convolutions}


def _resident_bytes(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
