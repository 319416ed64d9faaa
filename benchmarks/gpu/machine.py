"""Where it runs, and why it would not. Needs no torch itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

__all__ = ["ENOUGH", "device_name", "environment", "refusal", "unseen"]

ENOUGH = 0.5
"""Share of a device's memory that must be free: what is measured on one that others fill says little."""


def environment(python: Sequence[str], patience_seconds: int) -> dict[str, Any]:
    """Return what ``autockpt doctor --json`` says, in a process of its own; what it says on stderr where it fails.

    Args:
        python: begins the command: what runs a module that is named after it.
        patience_seconds: how long it may take.
    """
    try:
        asked = subprocess.run(
            [*python, "autockpt", "doctor", "--json"],
            capture_output=True,
            text=True,
            timeout=patience_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"autockpt doctor says nothing for {patience_seconds} s"}
    try:
        found: dict[str, Any] = json.loads(asked.stdout)
    except json.JSONDecodeError:
        return {"error": f"autockpt doctor ended with {asked.returncode}: {asked.stderr.strip()[-400:]}"}
    return found


def device_name(device: str, found: dict[str, Any]) -> str:
    """Return what the device calls itself, from the `environment`."""
    if device == "cpu":
        return "CPU"
    return str(found["devices"][0]["name"]) if found.get("devices") else "unknown device"


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
        return f"no CUDA device: {'; '.join(reasons)}; DEVICE=fake-cuda SIZE=tiny runs without one"
    first = found["devices"][0]
    if first["error"]:
        return f"{first['name']} does not answer: {first['error']}"
    if first["free_bytes"] < ENOUGH * first["total_bytes"]:
        free, total = first["free_bytes"] / 2**30, first["total_bytes"] / 2**30
        return f"{free:.1f} of the {total:.1f} GiB of {first['name']} are free: others hold the rest; take another"
    hidden = [why for why in reasons if any(f"{name}=" in why for name in found["settings"])]
    return hidden[0] if hidden else None


def unseen(device: str, found: dict[str, Any]) -> str | None:
    """Return what recording said on a device where it saw no allocations, so that every row would fail; else None."""
    tried = [each for each in found.get("tried", []) if each["device"].partition(":")[0] == device]
    blind = [each for each in tried if not each["seen_bytes"]]
    return (blind[0]["error"] or "a known tensor was not among the recorded allocations") if blind else None
