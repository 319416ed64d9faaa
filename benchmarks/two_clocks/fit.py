"""Fit the paces of one H100 and its host to what plain steps took there, and steps under torch's checkpoint.

The rows are those of `benchmarks/gpu/results/2026-11-26-h100-loops/where_time_goes`: two Llamas, one paced by its host
and one by the device. What autockpt's own steps took there is not looked at: it is what the fit is held against.

    kernels    torch's step less the plain one ──▶ of an operator         the plain one ──▶ of backward
    works      torch's step less the plain one ──▶ forward's slowdown     the plain one ──▶ backward's
    the host   torch's step less the plain one ──▶ a launch of forward    the plain one ──▶ one of backward

The last row is taken from the Llama that its host paces. A slowdown is over the roofline's seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autockpt import Plan, Profile, Segment
from autockpt._choose.candidates import Candidates
from autockpt._choose.candidates.from_plan import find_planned
from autockpt._choose.replay_cost.two_clocks import TwoClocks, simulate
from autockpt._data.hardware.paces import GAP_SECONDS, DevicePace, HostPace
from autockpt._data.hardware.rooflines import HostCosts

__all__ = ["LLAMAS", "OURS", "TORCH", "Fitted", "every_block", "fitted", "on_two_clocks", "rows"]

HERE = Path(__file__).parent
RESULTS = HERE.parent / "gpu" / "results" / "2026-11-26-h100-loops" / "where_time_goes" / "stage3.json"

PACED_BY_HOST, LLAMAS = "llama-100m", ("llama-100m", "llama-1b")
"""The profiles beside this file: `autockpt.profile(..., mode="fake", device="h100", holds_outputs=False)` of the models
of `benchmarks/gpu/models.py` in bfloat16, on 2026-11-28."""

TORCH = HostCosts(replay_seconds=400e-6, save_seconds=9.5e-6)
"""What torch's checkpoint takes of that host beside launching, for a block."""

OURS = HostCosts(replay_seconds=650e-6, member_seconds=100e-6, save_seconds=26e-6)
"""What autockpt took of it on 2026-11-26."""

COMPARED_KERNELS = 6.0
"""Of the checksum of that day, for each saved tensor."""

OPTIMIZERS = {"llama-100m": (8e-3, 55, 2.1e-3), "llama-1b": (11e-3, 600, 17.4e-3)}
"""Of each AdamW: seconds of the host, kernels, and seconds of the device (`multi_tensor_apply` in the traces)."""

COMPARED_RATES = {"llama-100m": 0.33e12, "llama-1b": 0.52e12}
"""At which that checksum read saved tensors, in bytes a second: small ones of the first, larger ones of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A model's step there.

    Attributes:
        blocks: the profile, and every block recomputed.
        host: the pace of the host, with what torch's checkpoint takes of it.
        device: the pace of the device.
    """

    blocks: Candidates
    host: HostPace
    device: DevicePace


def rows() -> dict[str, Mapping[str, Any]]:
    """Return what was measured, by model."""
    return {row["name"].split()[-1]: row["measured"] for row in json.loads(RESULTS.read_text())["rows"]}


def fitted() -> dict[str, Fitted]:
    """Fit the paces; the launches of both models are those of the one that is paced by its host."""
    measured = rows()
    found = {name: _fitted(name, measured[name]) for name in LLAMAS}
    forward, backward = found[PACED_BY_HOST].host.forward_seconds, found[PACED_BY_HOST].host.backward_seconds
    return {
        name: replace(each, host=replace(each.host, forward_seconds=forward, backward_seconds=backward))
        for name, each in found.items()
    }


def _fitted(name: str, row: Mapping[str, Any]) -> Fitted:
    profile = Profile.load(HERE / f"{name}.json.gz")
    blocks = find_planned(profile, every_block(profile))
    host_seconds, optimizer_kernels, optimizer_seconds = OPTIMIZERS[name]

    def plain_and_more(what: str) -> tuple[float, float]:
        plain, torch = row[f"plain: {what}"], row[f"torch, every block: {what}"]
        return plain, torch - plain

    operators = len(profile.ops)
    again = sum(replay.host.launched for replay in blocks.replays)
    kernels, more_kernels = plain_and_more("kernels and copies")
    forward_kernels = more_kernels / again
    backward_kernels = kernels - optimizer_kernels - operators * forward_kernels
    works, more_works = plain_and_more("device works, seconds")
    slowdown = more_works / sum(replay.device_seconds for replay in blocks.replays)
    forward_seconds = sum(profile.ops.seconds)
    backward_works = works - optimizer_seconds - slowdown * forward_seconds
    launching, more_launching = plain_and_more("host seconds")
    own = sum(replay.host.seconds(TORCH) for replay in blocks.replays)
    forward_launch = (more_launching - own) / more_kernels
    backward_launch = (launching - host_seconds - operators * forward_kernels * forward_launch) / backward_kernels
    host = HostPace(
        forward_seconds=forward_launch,
        backward_seconds=backward_launch,
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels / (operators * forward_kernels),
        costs=TORCH,
        optimizer_seconds=host_seconds,
        optimizer_kernels=optimizer_kernels,
        compared_kernels=COMPARED_KERNELS,
    )
    device = DevicePace(
        slowdown=slowdown,
        backward_slowdown=backward_works / (profile.plain_seconds - forward_seconds),
        gap_seconds=GAP_SECONDS,
        optimizer_seconds=optimizer_seconds,
        compared_bytes_per_second=COMPARED_RATES[name],
    )
    return Fitted(blocks=blocks, host=host, device=device)


def every_block(profile: Profile) -> Plan:
    """Recompute each decoder layer whole."""
    names = [call.name for call in profile.calls if call.class_name.endswith("DecoderLayer")]
    return Plan(segments=tuple(Segment(calls=(f"{name}#0",)) for name in names))


def on_two_clocks(name: str, of: Fitted) -> dict[str, TwoClocks]:
    """Simulate a model's steps: plain, torch's, and ours with every block, one of which is compared."""
    index, blocks = of.blocks.index, of.blocks.replays
    ours, one = replace(of.host, costs=OURS), len(blocks) // 3
    return {
        "plain": simulate(index, (), of.host, of.device),
        "torch, every block": simulate(index, blocks, of.host, of.device),
        "every block": simulate(index, blocks, ours, of.device, compared=one),
    }
