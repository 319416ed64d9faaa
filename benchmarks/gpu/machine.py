"""Where it runs, why it would not, and an empty cache for the next row."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from typing import Any

import torch

__all__ = ["ENOUGH", "clean", "environment", "refusal", "synchronize"]

ENOUGH = 0.5
"""Share of a device's memory that must be free: what is measured on one that others fill says little."""

PATIENCE_SECONDS = 120


def environment() -> dict[str, Any]:
    """Return what ``autockpt doctor --json`` says, in a process of its own; what it says on stderr where it fails."""
    command = [sys.executable, "-m", "autockpt", "doctor", "--json"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"autockpt doctor says nothing for {PATIENCE_SECONDS} s"}
    try:
        found: dict[str, Any] = json.loads(asked.stdout)
    except json.JSONDecodeError:
        return {"error": f"autockpt doctor ended with {asked.returncode}: {asked.stderr.strip()[-400:]}"}
    return found


def refusal(device: str, found: dict[str, Any]) -> str | None:
    """Return why nothing can be measured on `device`, and what to do; None where something can.

    Args:
        device: ``cuda`` or ``cpu``.
        found: the `environment`.
    """
    if device == "cpu" or "error" in found:
        return None
    reasons = [problem["why"] for problem in found["problems"] if problem["what"] == "cuda"]
    if not found["devices"]:
        return f"no CUDA device: {'; '.join(reasons)}; DEVICE=cpu SIZE=tiny runs without one"
    first = found["devices"][0]
    if first["error"]:
        return f"{first['name']} does not answer: {first['error']}"
    if first["free_bytes"] < ENOUGH * first["total_bytes"]:
        free, total = first["free_bytes"] / 2**30, first["total_bytes"] / 2**30
        return f"{free:.1f} of the {total:.1f} GiB of {first['name']} are free: others hold the rest; take another"
    hidden = [why for why in reasons if any(f"{name}=" in why for name in found["settings"])]
    return hidden[0] if hidden else None


def clean(device: torch.device) -> None:
    """Let go of what a row held, and empty the allocator's cache.

    Raises:
        RuntimeError: the device answers nothing any more, as after an illegal access; a new process has to go on.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
