"""The ways to take a step: what they hold and take, and that the fastest is recommended. Needs no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autockpt import Fits, Offload, Plan, Profile
from tests.doors import (
    Batches,
    FitClock,
    carried,
    find_fits,
    find_planned,
    floor_bytes,
    gradients_of,
    later,
    mixes_samples,
    shipped_names,
    splits_of,
)
from tests.handmade import chain_profile

load = functools.cache(Profile.load)

CARDS = ("t4", "rtx4090", "a100-40gb", "h100")


@functools.cache
def found(name: str, cards: tuple[str, ...] = CARDS) -> Fits:
    return find_fits(load(name), cards)


@functools.cache
def convolutions() -> Fits:
    """A step of 512 images on a card, and on memory alone."""
    return find_fits(load("resnet-50"), ["t4", "9GB"], sizes=[512])


FEW = ("gpt2-xl", "resnet-50")
EVERY = [
    pytest.param("resnet-50", convolutions, id="convolutions"),
    *(pytest.param(name, functools.partial(found, name), id=name, marks=pytest.mark.sweep) for name in shipped_names()),
]


@pytest.mark.parametrize(("name", "fits"), EVERY)
def test_what_is_recommended_is_the_fastest_of_all_ways_that_fit(name: str, fits: Callable[[], Fits]) -> None:
    """By exhaustion: each way is laid out anew, and timed by the same model."""
    recorded = load(name)
    samples, mixes = recorded.samples, mixes_samples(recorded)
    assert samples is not None and fits().mixes == mixes
    for row in fits().rows:
        assert row.samples is not None
        there = carried(recorded, row.gpu)
        clock, fastest = FitClock.of(find_planned(there, Plan())), {}
        for way in row.ways:
            step = Batches.of(there, samples).at(row.samples // way.microbatches)
            if way.microbatches > 1:
                step = later(step)
            planned = find_planned(step, way.plan or Plan())
            seconds = clock.seconds(planned, way.microbatches)
            assert way.seconds == seconds
            assert (way.plan or Plan()).timeline(step).peak_bytes == way.peak_bytes
            assert way.fits == (way.peak_bytes <= row.device.usable_bytes)
            if way.fits and (way.microbatches == 1 or not mixes):
                fastest[way] = seconds
        assert row.best is (row.ways[0] if fastest else None)
        if row.best is not None:
            assert row.best.seconds <= min(fastest.values()) * (1 + 1e-5)


@pytest.mark.parametrize("name", FEW)
def test_a_later_microbatch_holds_no_less_than_the_first(name: str) -> None:
    first = load(name)
    then = later(first)
    gradients = sum(first.tensors.bytes[each] for each in gradients_of(first))
    assert gradients == first.static.parameter_bytes  # all of these train every parameter
    assert then.static.gradient_bytes == first.static.gradient_bytes + gradients
    assert gradients_of(then) == ()
    assert first.plain_peak_bytes <= then.plain_peak_bytes <= first.plain_peak_bytes + gradients
    assert floor_bytes(then) >= floor_bytes(first)


@pytest.mark.parametrize(("name", "fits"), EVERY)
def test_in_more_microbatches_a_plain_step_takes_longer_and_holds_less(name: str, fits: Callable[[], Fits]) -> None:
    """Launches, and adding gradients, come once more for each."""
    for row in fits().rows:
        plain = sorted((way for way in row.ways if way.plan is None), key=lambda way: way.microbatches)
        assert [way.microbatches for way in plain[1:]] == splits_of(row.samples)[: len(plain) - 1]
        seconds = [way.seconds for way in plain]
        assert seconds == sorted(seconds)
        peaks = [way.peak_bytes for way in plain[1:]]
        assert peaks == sorted(peaks, reverse=True)


def test_batchnorm_is_seen_and_microbatches_are_not_recommended() -> None:
    assert [mixes_samples(load(name)) for name in ("resnet-50", "vit-large", "gpt2-xl")] == [True, False, False]
    row, _ = convolutions().rows
    assert row.best is not None and row.best.microbatches == 1 and row.best.kind == "planned"
    split = [way for way in row.ways if way.microbatches > 1]
    assert split and all(not way.same_result for way in split)
    assert any(way.fits and way.seconds < row.best.seconds for way in split)


def test_memory_alone_ranks_ways_as_the_recorded_device_does() -> None:
    card, alone = convolutions().rows
    assert card.timed and not alone.timed and alone.best is not None
    profile = Batches.of(load("resnet-50"), 256).at(512)
    clock = FitClock.of(find_planned(load("resnet-50"), Plan()))
    at_once = [way for way in alone.ways if way.microbatches == 1]
    assert [way.seconds for way in at_once] == [
        clock.seconds(find_planned(profile, way.plan or Plan())) for way in at_once
    ]


def test_a_step_of_unknown_samples_is_taken_at_once() -> None:
    (row,) = find_fits(chain_profile(), ["t4"]).rows
    assert [way.microbatches for way in row.ways] == [1]
    assert row.best is not None and row.best.samples is None and row.best.samples_per_second is None


@given(st.integers(1, 5000))
def test_splits_divide_and_the_fewest_come_first(samples: int) -> None:
    splits = splits_of(samples)
    assert splits == sorted(splits) and all(samples % each == 0 for each in splits)
    assert len(splits) == min(16, sum(samples % each == 0 for each in range(2, samples + 1)))


@pytest.mark.sweep
def test_offloading_is_one_way_more() -> None:
    profile = msgspec.structs.replace(load("resnet-50"), offload=Offload(where="host", write_rate=1e12, read_rate=1e12))
    (row,) = find_fits(profile, ["t4"], sizes=[512], offload="host").rows
    at_once = {way.kind: way for way in row.ways if way.microbatches == 1}
    assert set(at_once) == {"plain", "planned", "offloaded"}
    assert at_once["offloaded"].fits and row.plan is not None and row.plan.offload is not None
    assert at_once["plain"].seconds <= at_once["offloaded"].seconds


@pytest.mark.parametrize("name", FEW)
def test_on_one_clock_gradients_are_added_as_fast_as_the_steps_own_tensors(name: str) -> None:
    """They took nothing there. Of a roofline's seconds both ways to tell the rate give the same."""
    on_cpu = msgspec.structs.replace(load(name), device="cpu")
    plain = find_planned(on_cpu, Plan())
    clock = FitClock.of(plain)
    assert clock.paces is None
    on_two = FitClock.of(find_planned(load(name), Plan()))
    assert clock.added.device_seconds == pytest.approx(on_two.added.device_seconds, rel=0.05)
    assert clock.seconds(plain, 3) == pytest.approx(3 * clock.seconds(plain) + 2 * clock.added.device_seconds)


def test_on_one_clock_it_is_said_that_small_microbatches_take_more() -> None:
    """The page said that they are timed with what a host takes to launch them."""
    on_cpu = msgspec.structs.replace(load("gpt2-xl"), device="cpu", mode="measured")
    for profile in (on_cpu, load("gpt2-xl")):
        told = " ".join(str(find_fits(profile, ["rtx4090"]).explain()).split())
        assert ("Microbatches are taken to need their share of" in told) == (profile is on_cpu)
        assert ("Microbatches are timed with what the host takes to launch them" in told) == (profile is not on_cpu)
