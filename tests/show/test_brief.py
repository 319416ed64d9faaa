"""What a plan recomputes, in words; and the first screens of `solve` and `explain`."""

from __future__ import annotations

import msgspec
import pytest

from autockpt import Frontier, Plan, Profile, Segment, frontier, solve
from autockpt.solvers import format_seconds
from tests.doors import brief_frontier, brief_plan, brief_profile, in_words, phrase, shortened
from tests.handmade import chain_profile

MIB = 2**20


def segment(call: str, *keep: str, freed_bytes: int = MIB) -> Segment:
    return Segment(calls=(f"{call}#0",), keep=tuple(f"{call}.{each}" for each in keep), freed_bytes=freed_bytes)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([f"{i}.{j}#0" for i in range(7) for j in range(2)], "14 parts of blocks whole"),
        (["0.1#0/linear#0", "3.1#0/linear#0"], "linear in 2 parts of blocks whole"),
        (["0#0", "0#1"], "2 blocks whole"),
        (["0#1"], "1 block whole"),
        (["h.1#0/gelu#0", "h.2#0/gelu#1"], "gelu in 2 blocks of h whole"),
    ],
)
def test_blocks_without_a_name_and_further_passes_are_said_in_words(calls: list[str], words: str) -> None:
    assert phrase(Plan(segments=tuple(Segment(calls=(call,)) for call in calls))) == words


def test_blocks_are_counted_and_what_is_kept_in_them_is_named() -> None:
    core = "attn#0/scaled_dot_product_attention#0"
    segments = [segment(f"net.h.{i}", core, "mlp.fc#0/linear#0", "mlp#0/add#0") for i in range(40)]
    segments += [segment(f"net.h.{i}") for i in range(40, 46)]
    assert list(in_words(Plan(segments=tuple(segments)))) == [
        "46 blocks of h (6 whole, 40 in part); kept: attention, fc"
    ]
    assert phrase(Plan(segments=tuple(segments[:40]))) == "40 blocks of h in part; kept: attention, fc"
    assert phrase(Plan(segments=tuple(segments[40:]))) == "6 blocks of h whole"
    assert phrase(Plan()) == "nothing"


def test_of_how_many_is_said_where_the_step_is_known() -> None:
    profile = chain_profile(8)
    every = Plan.of([f"h.{i}.mlp" for i in range(8)])
    assert phrase(every, profile) == "mlp in all 8 blocks of h whole"
    assert phrase(Plan.of(["h.1.mlp", "h.4.mlp"]), profile) == "mlp in h.{1, 4} whole"
    assert phrase(Plan.of([f"h.{i}.mlp" for i in range(5)]), profile) == "mlp in 5 of 8 blocks of h whole"
    assert phrase(Plan.of([f"h.{i}.mlp" for i in range(5)])) == "mlp in 5 blocks of h whole"


def test_several_kinds_go_by_what_they_free() -> None:
    names = ["a.x.0", "a.x.1", "a.y.0", "head", "a.tail", "b"]
    plan = Plan(segments=tuple(segment(name, freed_bytes=MIB * n) for n, name in enumerate(names, 1)))
    assert list(in_words(plan)) == ["b whole", "tail whole", "head whole", "and 3 calls of other kinds"]
    assert phrase(plan) == "b whole, tail whole and more"
    assert (
        phrase(Plan.of(["enc.stages.0.layers.1.conv", "enc.stages.0.layers.2.conv"]))
        == "2 stages.*.layers.*.conv whole"
    )
    assert phrase(Plan.of([""])) == "the whole model whole"


def test_names_lose_the_parts_that_all_can_do_without_and_never_their_middle() -> None:
    names = ["base.model.encoder.layers", "base.model.decoder.layers", "base.model.norm"]
    assert shortened(names) == dict(zip(names, ["encoder.layers", "decoder.layers", "norm"], strict=True))
    assert shortened(["h", "a.h"]) == {"h": "h", "a.h": "a.h"}
    assert shortened([""]) == {"": ""}


def test_peaks_are_told_in_the_unit_of_the_budget() -> None:
    profile = chain_profile()
    decimal = brief_plan(solve(profile, "80MB"), profile).text(80)
    assert decimal.startswith("Fits 80MB: peak ") and " MB" in decimal and "MiB" not in decimal
    binary = brief_plan(solve(profile, "80MiB"), profile).text(80)
    assert binary.startswith("Fits 80MiB: peak ") and " MiB" in binary and " MB" not in binary


def test_the_verdict_comes_first() -> None:
    profile = chain_profile()
    fits = brief_plan(solve(profile, "1GiB"), profile, then="nothing").text(80)
    assert fits.startswith("Fits 1GiB already: the plain step peaks at ") and "nothing is recomputed" in fits
    assert "Next:" not in fits and "Recomputed" not in fits
    assert "the lowest at one level" in brief_plan(solve(profile, "min"), profile).text(80)
    assert "the lowest that can be reached" in brief_plan(solve(profile, "lowest"), profile).text(80)
    assert "the lowest within 0.05 of" in brief_plan(solve(profile, max_overhead=0.05), profile).text(80)
    assert brief_plan(Plan.of(["h.0"])).text(80).startswith("A plan that was written by hand")


@pytest.mark.parametrize("name", ["gpt2-xl", "t5-large", "resnet-152", "sd-unet"])
def test_no_screen_has_more_than_fifteen_lines(name: str) -> None:
    profile = Profile.load(name)
    plan = solve(profile, int(0.8 * profile.plain_peak_bytes), seconds=0.2)
    step = msgspec.structs.replace(profile, model="AModelOfAVeryLongNameForConditionalGenerationOfText")
    for page in (brief_plan(plan, step, then="autockpt solve it"), brief_profile(profile, then="autockpt solve it")):
        lines = page.text(80).splitlines()
        assert len(lines) <= 15
        assert max(map(len, lines)) <= 80


def test_a_frontier_shows_a_few_of_its_rows() -> None:
    found: Frontier = frontier(chain_profile(), points=12, seconds=1)
    lines = brief_frontier(found, then="autockpt explain it").text(80).splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("Chain: ")


def test_what_print_shows_is_the_short_page() -> None:
    """It was the repr of a dataclass, with every segment of the plan in it."""
    profile = chain_profile()
    plan, found = solve(profile, "80MiB"), frontier(profile, points=4, seconds=1)
    for each, first in ((plan, "Fits 80MiB: peak "), (profile, "Chain: plain peak "), (found, "Chain: ")):
        text = str(each)
        assert text.startswith(first) and text.splitlines()[-1].startswith(".explain() shows ")
        assert "-v" not in text and not text.endswith("\n") and len(text.splitlines()) <= 15
        assert each.explain() != text and repr(each) != text
    assert str(Plan.of(["h.0"])).startswith("A plan that was written by hand")


def test_a_profile_and_its_plans_time_the_plain_step_on_one_clock() -> None:
    """`explain resnet-50` said 118 ms a step, the device's alone, and `solve resnet-50` 164 ms of the same step."""
    profile = Profile.load("resnet-50")
    plain = format_seconds(solve(profile, 2**62).plain_seconds)
    assert f", {plain} a step" in brief_profile(profile).text(80)
    assert f"the device's alone; {plain} with its host" in profile.explain()
