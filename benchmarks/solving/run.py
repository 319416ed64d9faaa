"""Time solving on large steps: 96 layers of GPT-3's shape, Llama of 7B, and models of a thousand operators and more.

No weights are needed: the steps are recorded in fake mode, or come with autockpt.
"""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import autockpt
from autockpt import Infeasible, Plan, Profile
from benchmarks.environment import table, write
from benchmarks.solving.densenet import DenseNet201

SHARES = (0.8, 0.6, 0.5, 0.4)
"""Of what the plain step adds to what is there."""

DEVICE = "h200"
"""Whose roofline gives the operators' seconds."""

GOAL_SECONDS = {"gpt3": 3.0, "swin": 10.0, "unet": 10.0, "densenet201": 10.0}
"""Of one solve."""

GOAL_GAP = 0.01
"""What another choice among the candidates may save of the recompute seconds, for GPT-3."""

GOAL_OVERHEAD = {"gpt3": 0.08, "llama7b": 0.08}
"""Of recomputing at half of what the plain step adds, where matrix products take most of a step."""

GOAL_BYTES = 1 << 30
"""The process's memory, after GPT-3."""


def run_models(names: Iterable[str]) -> None:
    """Run some models, and write down what was found."""
    models = {name: run_model(record()) for name, record in PROFILES.items() if name in names}
    write(Path(__file__).parent, {"models": models}, report(models))


def gpt3() -> Profile:
    """96 layers, 12,288 wide, 96 heads (Brown et al. 2020, table 2.1), 16 times 2,048 tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=96, n_embd=12288, n_head=96, n_positions=2048, use_cache=False)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    with torch.device("meta"):
        model = GPT2LMHeadModel(config).to(torch.bfloat16).train()
        ids = torch.zeros(16, 2048, dtype=torch.long)
    return autockpt.profile(model, {"input_ids": ids, "labels": ids}, mode="fake", device=DEVICE)


def llama7b() -> Profile:
    """32 layers, 4,096 wide, 32 heads (Touvron et al. 2023, table 2), 8 times 2,048 tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        intermediate_size=11008,
        vocab_size=32000,
        max_position_embeddings=2048,
        use_cache=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).train()
        ids = torch.zeros(8, 2048, dtype=torch.long)
    return autockpt.profile(model, {"input_ids": ids, "labels": ids}, mode="fake", device=DEVICE)


def densenet201() -> Profile:
    """32 images of 224 by 224."""
    with torch.device("meta"):
        return autockpt.profile(DenseNet201(), torch.empty(32, 3, 224, 224), mode="fake", device=DEVICE)


PROFILES: dict[str, Callable[[], Profile]] = {
    "gpt3": gpt3,  # first: the process's memory is looked at after it
    "llama7b": llama7b,
    "swin": lambda: Profile.load("swin-base"),
    "unet": lambda: Profile.load("sd-unet"),
    "densenet201": densenet201,
    "t5": lambda: Profile.load("t5-large"),
}


def run_model(profile: Profile) -> dict[str, Any]:
    """Solve for each share, once everything is imported and the plain peak is known."""
    static_bytes = profile.static.total_bytes
    added_bytes = autockpt.solve(profile, 2**62).peak_bytes - static_bytes
    solved = []
    for share in SHARES:
        began, cpu = time.perf_counter(), time.process_time()
        plan = solve(profile, static_bytes + round(share * added_bytes))
        solved.append(
            {
                "share": share,
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
                "feasible": plan is not None,
                "overhead": None if plan is None else plan.recompute_overhead,
                "gap": None if plan is None else plan.gap,
                "choice_gap": None if plan is None else plan.choice_gap,
                "segments": 0 if plan is None else len(plan.segments),
            }
        )
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"calls": len(profile.calls), "ops": len(profile.ops), "memory_bytes": memory_bytes, "solved": solved}


def solve(profile: Profile, budget_bytes: int) -> Plan | None:
    """The plan; None where there is none, which takes a search too."""
    try:
        return autockpt.solve(profile, budget_bytes)
    except Infeasible:
        return None


def report(models: dict[str, Any]) -> str:
    """Lay out what each took, and which goals were met."""
    said = []
    for name, goal in GOAL_SECONDS.items():
        if name in models:
            worst = max(row["seconds"] for row in models[name]["solved"])
            said.append(f"{name}: at most {worst:.1f} s (goal: {goal:g})")
    for name, goal in GOAL_OVERHEAD.items():
        if name in models:
            (half,) = (row["overhead"] for row in models[name]["solved"] if row["share"] == 0.5)
            assert half is not None, f"{name} cannot be held to half of what its plain step adds"
            said.append(f"{name} at half of what the plain step adds: {half:.1%} overhead (goal: {goal:.0%})")
    if "gpt3" in models:
        gaps = [row["choice_gap"] for row in models["gpt3"]["solved"] if row["choice_gap"] is not None]
        memory = models["gpt3"]["memory_bytes"]
        assert len(gaps) == len(SHARES), (
            "a budget that GPT-3 cannot be held to, or whose plan is not known to be near the best"
        )
        said.append(f"gpt3's plans are within {max(gaps):.2%} of the best choice (goal: {GOAL_GAP:.0%})")
        said.append(f"the process held {memory / 2**30:.2f} GiB after it (goal: {GOAL_BYTES / 2**30:g})")
    rows = [
        [
            name,
            str(model["calls"]),
            str(model["ops"]),
            f"{row['share']:.0%}",
            f"{row['seconds']:.2f} s",
            f"{row['cpu_seconds']:.2f} s",
            "infeasible" if not row["feasible"] else f"{row['overhead']:.1%}",
            percent(row["choice_gap"]),
            percent(row["gap"]),
            str(row["segments"]),
        ]
        for name, model in models.items()
        for row in model["solved"]
    ]
    heads = ["model", "calls", "operators", "budget", "wall", "CPU", "overhead", "choice gap", "gap", "segments"]
    return f"{'; '.join(said)}.\n\n{table(heads, rows)}"


def percent(share: float | None) -> str:
    """A share, where it is known."""
    return "" if share is None else f"{share:.2%}"
