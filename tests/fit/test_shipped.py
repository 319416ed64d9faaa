"""Shipped profiles on other devices and with other batches. Needs no torch."""

from __future__ import annotations

import functools

import msgspec
import pytest

from autockpt import Fits, Plan, Profile
from tests.doors import ROOFLINES, Batches, carried, find_fits, is_carried, largest, switches
from tests.handmade import chain_profile

GIB = 2**30
load = functools.cache(Profile.load)


@functools.cache
def found() -> Fits:
    return find_fits(load("gpt2-xl"), ["t4", "v100-16gb", "rtx4090", "h100"])


def test_each_device_gets_the_plan_that_fits_it() -> None:
    t4, v100, rtx4090, h100 = found().rows
    assert t4.plan is None and t4.minimum_bytes > t4.device.usable_bytes and t4.largest == 0
    assert v100.plan is None and v100.largest and 0 < v100.largest < 8  # fewer samples would fit
    assert rtx4090.plan is not None and rtx4090.plan.peak_bytes <= rtx4090.device.usable_bytes
    assert 0.1 < rtx4090.overhead < 0.2
    assert rtx4090.largest_plain == 2 and rtx4090.largest and 16 < rtx4090.largest < 24
    assert h100.plan is not None and not h100.plan.segments and h100.overhead == 0
    lowest = found().lowest
    assert lowest is not None and lowest.step == "optimizer step"
    assert (found().timed_for, found().by_roofline) == ("rtx4090", True)


def test_switches_stand_beside_our_plan_at_their_peak() -> None:
    every, second, core = found().switches
    plain = load("gpt2-xl").plain_peak_bytes
    assert (every.switch.name, every.switch.segments) == ("every block", 48)
    assert every.switch.peak_bytes < second.switch.peak_bytes < 0.7 * plain
    assert 0.2 < every.overhead < 0.3 and second.overhead == pytest.approx(every.overhead / 2, rel=0.05)
    assert every.ours is not None and every.ours <= every.overhead
    assert second.ours is not None and second.ours < 0.65 * second.overhead
    assert core.switch.peak_bytes > 0.99 * plain  # a fused kernel saves no scores, so there is nothing to free


def test_the_core_of_plain_attention_holds_its_scores() -> None:
    profile = load("t5-large")
    core = next(each for each in switches(profile) if each.name == "attention core")
    assert core.peak_bytes < 0.75 * profile.plain_peak_bytes
    assert core.segments == 72  # 24 in the encoder, twice 24 in the decoder


def test_no_switch_is_stated_where_no_block_repeats() -> None:
    profile = chain_profile()
    renamed = (msgspec.structs.replace(call, name=call.name.replace("h.", "h")) for call in profile.calls)
    assert list(switches(msgspec.structs.replace(profile, calls=tuple(renamed)))) == []


def test_several_batches_have_a_row_each() -> None:
    rows = find_fits(load("resnet-50"), ["t4"], sizes=[64, 512]).rows
    assert [row.samples for row in rows] == [64, 512]
    assert [bool(row.plan and row.plan.segments) for row in rows] == [False, True]
    assert len({row.largest for row in rows}) == 1


def test_a_profile_that_does_not_tell_its_samples_has_no_largest_batch() -> None:
    profile = chain_profile()
    assert profile.samples is None and not is_carried(profile)
    (row,) = (result := find_fits(profile, ["t4"])).rows
    assert row.largest is None and row.plan is not None and not row.plan.segments
    assert not result.by_roofline


def test_seconds_are_carried_as_rooflines_differ() -> None:
    profile = load("gpt2-xl")
    assert carried(profile, "rtx4090") is profile
    h100, h200 = carried(profile, "h100"), carried(profile, "h200")
    assert (h100.device, h100.plain_peak_bytes) == ("h100", profile.plain_peak_bytes)
    assert profile.plain_seconds / 6 < h200.plain_seconds < h100.plain_seconds < profile.plain_seconds / 3
    assert sum(h100.functions.seconds) == pytest.approx(sum(h100.ops.seconds))
    slower = carried(load("llama-8b"), "t4")
    rates = ROOFLINES["h100"].half_flops / ROOFLINES["t4"].half_flops
    assert 8 < slower.plain_seconds / load("llama-8b").plain_seconds < rates


def test_a_measured_profile_keeps_its_seconds() -> None:
    profile = msgspec.structs.replace(load("gpt2-xl"), mode="measured")
    assert not is_carried(profile) and carried(profile, "h100") is profile
    assert not is_carried(msgspec.structs.replace(load("gpt2-xl"), recipe=None))


def test_what_is_sized_there_and_back_is_the_same() -> None:
    profile = load("vit-large")
    twice = Batches.of(profile, 128).at(256)
    back = Batches.of(twice, 256).at(128)
    assert back.plain_peak_bytes == pytest.approx(profile.plain_peak_bytes, rel=1e-6)
    assert twice.plain_seconds == 2 * profile.plain_seconds
    assert twice.static.parameter_bytes == profile.static.parameter_bytes
    assert Plan().timeline(twice).peak_bytes == twice.plain_peak_bytes


@pytest.mark.parametrize("usable", [1, 99, 101, 104, 130, 260, 1000, 4321, 10**5])
def test_the_largest_batch_fits_and_is_about_the_largest(usable: int) -> None:
    def peak_bytes(size: int) -> int:  # it bends at 20
        return max(100, 5 * size)

    answer = largest(peak_bytes, usable)
    assert answer == 0 or peak_bytes(answer) <= usable
    assert answer >= int(0.95 * (usable // 5 if usable >= 100 else 0))
