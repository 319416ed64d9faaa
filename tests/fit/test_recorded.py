"""What is foretold of another batch or another device, against recordings of it."""

from __future__ import annotations

import msgspec
import pytest
import torch

import autockpt
from autockpt import Profile
from benchmarks.seeds.models import MegatronBlocks
from tests.doors import Batches, Recipe, carried, switches
from tests.toys.chains import Residual

WIDTH = 128


def record(samples: int, device: str = "rtx4090", *, half: bool = False, autocast: bool = False) -> Profile:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Residual(WIDTH) for _ in range(6)))
    batch = torch.randn(samples, 64, WIDTH)
    if half:
        model, batch = model.bfloat16(), batch.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return autockpt.profile(model, batch, optimizer="adamw", mode="fake", device=device)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_batch_is_foretold_to_the_percent(autocast: bool) -> None:
    small, large = record(8, autocast=autocast), record(40, autocast=autocast)
    assert Batches.of(small, 8).at(40).plain_peak_bytes == pytest.approx(large.plain_peak_bytes, rel=0.01)
    assert Batches.of(large, 40).at(8).plain_peak_bytes == pytest.approx(small.plain_peak_bytes, rel=0.01)


def test_the_core_of_attention_that_calls_no_module_holds_what_comes_in() -> None:
    """What came into its functions is not recorded, and the switch was predicted as if they held nothing."""
    with torch.device("meta"):
        model = MegatronBlocks(layers=4, width=WIDTH, heads=4, length=256, dropout=0.1)
        batch = torch.empty(2, 256, WIDTH)
    profile = autockpt.profile(model.train(), batch, mode="fake", device="a100", loss=lambda out: out)
    core = next(each for each in switches(profile) if each.name == "attention core")
    by_hand = autockpt.solve(profile, 2**40, recompute=["*.core"], solver="none")
    assert core.segments == len(by_hand.segments) == 4
    assert (core.peak_bytes, core.recompute_seconds) == (by_hand.peak_bytes, by_hand.recompute_seconds)


@pytest.mark.parametrize("gpu", ["h100", "t4", "rtx5090"])
def test_seconds_are_carried_to_what_a_recording_for_the_device_says(gpu: str) -> None:
    recipe = Recipe(batch="512 rows", precision="bf16", optimizer="AdamW", versions={}, command="")
    profile = msgspec.structs.replace(record(512, half=True), recipe=recipe)
    there = record(512, gpu, half=True)
    found = carried(profile, gpu)
    assert found.plain_seconds == pytest.approx(there.plain_seconds, rel=0.1)
    assert sum(found.functions.seconds) == pytest.approx(sum(there.functions.seconds), rel=0.05)
    for ours, theirs in zip(found.calls, there.calls, strict=True):
        assert ours.forward_seconds == pytest.approx(theirs.forward_seconds, rel=0.1)
