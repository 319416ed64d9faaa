"""What is foretold of another batch or another device, against recordings of it."""

from __future__ import annotations

import msgspec
import pytest
import torch

import autockpt
from autockpt import Profile
from benchmarks.seeds.models import MegatronBlocks
from tests.doors import Batches, Recipe, carried, later, switches
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


class TiedWeights(torch.nn.Module):
    """A model whose first and last layer share their weights: their gradients meet at the end of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Embedding(3000, WIDTH)
        self.blocks = torch.nn.ModuleList(Residual(WIDTH) for _ in range(4))
        self.last = torch.nn.Linear(WIDTH, 3000, bias=False)
        self.last.weight = self.first.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.first(tokens)
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.last(x)
        return found.logsumexp(-1).mean()


@pytest.mark.parametrize("samples", [1, 8, 64])
def test_a_later_microbatch_is_foretold_as_it_is_recorded_beside_gradients(samples: int) -> None:
    model, tokens = TiedWeights(), torch.randint(0, 3000, (samples, 16))
    first = autockpt.profile(model, tokens, mode="fake", optimizer="adamw")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    beside = autockpt.profile(model, tokens, mode="fake", optimizer="adamw")
    found = later(first)
    assert found.static == beside.static
    assert found.plain_peak_bytes == pytest.approx(beside.plain_peak_bytes, rel=0.005)


def build() -> tuple[torch.nn.Module, torch.Tensor, None, str]:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Residual(WIDTH) for _ in range(6))), torch.randn(64, 64, WIDTH), None, "adamw"


def test_each_size_that_is_looked_at_is_recorded_anew() -> None:
    fits = autockpt.fit(build, "rtx4090")
    (row,) = fits.rows
    assert fits.samples == row.samples == 64
    model, batch, _, optimizer = build()
    for way in row.ways:
        if way.plan is None and way.samples is not None and way.microbatches <= 4:
            at = autockpt.profile(
                model, batch[: way.samples].clone(), mode="fake", device="rtx4090", optimizer=optimizer
            )
            assert way.peak_bytes == (later(at) if way.microbatches > 1 else at).plain_peak_bytes


def test_where_a_loss_holds_the_targets_other_sizes_are_worked_out() -> None:
    targets = torch.randn(64, 64, WIDTH)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return (out - targets).square().mean()

    (row,) = autockpt.fit(lambda: (*build()[:2], loss), ["h100"]).rows
    profile = autockpt.profile(*build()[:2], loss=loss, mode="fake", device="h100")
    halves = next(way for way in row.ways if way.microbatches == 2)
    assert halves.peak_bytes == later(Batches.of(profile, 64).at(32)).plain_peak_bytes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: None, "build must return"),
        (lambda: torch.nn.Linear(2, 2), "build must return"),
        (lambda: (torch.nn.Linear(2, 2),), "build must return"),
        (7, "build is 7; give a function"),
    ],
)
def test_a_build_that_returns_no_batch_is_refused(given: object, words: str) -> None:
    with pytest.raises(autockpt.ProfilingError, match=words):
        autockpt.fit(given, "t4")  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [0, -1, 2.5, True])
def test_no_number_of_samples_is_refused(samples: object) -> None:
    with pytest.raises(autockpt.BudgetError, match="samples is a whole number of at least 1"):
        autockpt.fit(build, "t4", samples=samples)  # type: ignore[arg-type]
