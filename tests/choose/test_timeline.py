"""The predicted memory over a step: the judge's levels, split by what stands there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autockpt
from autockpt import MemoryStep, MemoryTimeline, NotApplicable, Plan, Profile
from autockpt.solvers import Step, simulate
from tests.doors import CHART_LAYERS, Candidates, find_candidates, peak_parts, segments_of, split_levels, timeline_chart

from ..handmade import MIB, chain_profile
from ..hosts import host

PROFILES = [chain_profile(n_blocks) for n_blocks in range(1, 6)]
FOUND = [find_candidates(profile) for profile in PROFILES]
SIZES = [name for name in MemoryStep.__struct_fields__ if name.endswith("_bytes")]


@st.composite
def choices(draw: st.DrawFn, found: Candidates) -> tuple[int, ...]:
    """Some candidates that do not overlap."""
    chosen: list[int] = []
    for c in draw(st.permutations(range(len(found.replays)))):
        one = found.problem.candidates[c]
        others = [found.problem.candidates[other] for other in chosen]
        if all(other.stop <= one.start or one.stop <= other.start for other in others) and draw(st.booleans()):
            chosen.append(c)
    return tuple(sorted(chosen))


def check(profile: Profile, found: Candidates, chosen: tuple[int, ...]) -> MemoryTimeline:
    """Hold the timeline of a choice, and that of the plan which states it, against the judge."""
    judged = simulate(found.problem, chosen)
    timeline = split_levels(found, chosen)
    assert tuple(step.level_bytes for step in timeline.steps) == judged.level_bytes
    assert (timeline.peak, timeline.peak_bytes) == (judged.peak_step, judged.peak_bytes)
    assert [step.name for step in timeline.steps] == [step.name for step in found.problem.steps]
    assert all(getattr(step, size) >= 0 for step in timeline.steps for size in SIZES)
    plan = Plan(segments=segments_of(found, chosen))
    again = plan.timeline(profile)
    assert again.peak_bytes == judged.peak_bytes
    assert msgspec.json.decode(msgspec.json.encode(again), type=MemoryTimeline) == again
    return again


@settings(max_examples=40)
@given(st.data())
def test_it_stands_where_the_judge_says_for_drawn_plans(data: st.DataObject) -> None:
    which = data.draw(st.sampled_from(range(len(PROFILES))))
    check(PROFILES[which], FOUND[which], data.draw(choices(FOUND[which])))


def parts(step: MemoryStep) -> dict[str, float]:
    """What stands, in MiB."""
    return {size.removesuffix("_bytes"): getattr(step, size) / MIB for size in SIZES if getattr(step, size)}


def test_the_parts_worked_out_by_hand() -> None:
    """Four blocks hold (2 + 8) + (2 + 16) MiB each; static bytes are 5."""
    profile = PROFILES[3]
    plain = Plan().timeline(profile)
    assert parts(plain.steps[plain.peak]) == {"static": 5, "activation": 112, "transient": 2}
    recomputed = Plan.of(["h.0", "h.2"]).timeline(profile)
    # Of each 28 only the block's own argument stays, which the block before does not hold.
    assert parts(recomputed.steps[recomputed.peak]) == {"static": 5, "activation": 56, "boundary": 4, "transient": 2}
    replays = [step for step in recomputed.steps if step.restored_bytes]
    assert {step.phase for step in replays} == {"backward"}
    assert max(step.restored_bytes for step in replays) == 26 * MIB  # 8, 16, and the 2 between them
    assert recomputed.steps[-1].activation_bytes == 0
    ticks = [step.tick for step in recomputed.steps]
    assert ticks == sorted(set(ticks))
    assert all(step.tick <= step.top_tick < profile.ticks for step in recomputed.steps)


def test_an_optimizer_step_after_the_clock_has_a_phase_of_its_own() -> None:
    profile, found = PROFILES[2], FOUND[2]
    steps = (*found.problem.steps, Step(name="the optimizer step", base_bytes=9 * MIB))
    longer = dataclasses.replace(found, problem=dataclasses.replace(found.problem, steps=steps))
    timeline = split_levels(longer, ())
    assert [step.level_bytes for step in timeline.steps] == [*simulate(longer.problem, ()).level_bytes]
    last = timeline.steps[-1]
    assert (last.phase, last.tick, last.static_bytes, last.transient_bytes) == (
        "optimizer",
        profile.ticks,
        5 * MIB,
        4 * MIB,
    )
    assert "optimizer" not in {step.phase for step in timeline.steps[:-1]}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan.of(["h.9"]), "makes no such call"),
        (Plan.of([["h.0", "h.2"]]), "one after the other"),
        (Plan.of([["h.0.mlp", "h.1.attn"]]), "from the same call"),
        (
            Plan(segments=(autockpt.Segment(calls=("h.0#0",), keep=("h.0.attn#0/linear#0",)),)),
            "keeps or skips 'h.0.attn#0/linear#0', and nothing",
        ),
    ],
    ids=["missing", "not in a row", "not siblings", "units"],
)
def test_a_plan_of_another_model_is_refused(plan: Plan, words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        plan.timeline(PROFILES[3])


ROWS = 8192
"""So many that it pays to recompute parts of a block."""


def recorded() -> Iterator[tuple[int, Profile]]:
    """Bytes of a model's parameters and its profile, without gradients and then with gradients that exist."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nn = torch.nn
    blocks = (nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32)) for _ in range(4))
    model, batch = nn.Sequential(*blocks), torch.randn(ROWS, 32)
    size = sum(parameter.nbytes for parameter in model.parameters())
    yield size, autockpt.profile(model, batch)
    model(batch).sum().backward()
    yield size, autockpt.profile(model, batch)


def test_a_recorded_step_ends_with_its_gradients_and_its_output() -> None:
    for size, profile in recorded():
        with host():
            found = find_candidates(profile)
        assert any(run.alone for run in found.replays)
        for c in range(len(found.replays)):
            timeline = check(profile, found, (c,))
            last = timeline.steps[-1]
            assert (last.gradient_bytes, last.static_bytes) == (size, size + ROWS * 32 * 4)
            assert last.output_bytes >= ROWS * 32 * 4
            assert last.activation_bytes == last.boundary_bytes == last.restored_bytes == 0
            assert timeline.steps[0].gradient_bytes == profile.static.gradient_bytes


def test_the_operator_at_a_peak_in_forward_is_named() -> None:
    torch = pytest.importorskip("torch")

    class Wide(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.linear(x) * x.repeat(1, 500).exp().mean()

    profile = autockpt.profile(Wide(), torch.randn(64, 8))
    found = find_candidates(profile)
    parts = peak_parts(found, ())
    assert (parts.phase, parts.op, parts.segment) == ("forward", "aten.exp.default", "")
    assert parts.peak_bytes == simulate(found.problem, ()).peak_bytes
    assert 2 * 64 * 8 * 500 * 4 <= parts.transient_bytes < 2.1 * 64 * 8 * 500 * 4


def test_the_chart_names_the_root() -> None:
    timeline = Plan().timeline(PROFILES[3])
    steps = [msgspec.structs.replace(step, name="backward of #0") for step in timeline.steps]
    assert "peak, backward of the whole model" in timeline_chart(
        msgspec.structs.replace(timeline, steps=tuple(steps)), width=100
    )


@pytest.mark.parametrize("width", [60, 77, 100])
@pytest.mark.parametrize(
    "plan", [Plan(), Plan.of(["h.0", "h.2"]), Plan.of([["h.2", "h.3"]])], ids=["plain", "two", "run"]
)
def test_the_chart_fits_and_marks_the_peak(plan: Plan, width: int) -> None:
    timeline = plan.timeline(PROFILES[3])
    lines = timeline_chart(timeline, width=width).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line.partition("┤")[2] or line.partition("│")[2] for line in lines[1:11]]
    (arrow,) = (line for line in lines if "↑" in line)
    margin = lines[1].index("┤") + 1
    at = arrow.index("↑") - margin
    assert rows[0][at] != " "  # the peak is as high as the chart
    name = timeline.steps[timeline.peak].name
    assert f"peak, {name.removesuffix('#0')}" in " ".join(map(str.strip, lines))
    drawn = {glyph for row in rows for glyph in row} - {" "}
    there = {glyph for glyph, _, _, names in CHART_LAYERS if any(getattr(s, n) for s in timeline.steps for n in names)}
    assert {"▒", "·"} <= drawn <= there
    axis = lines[11]
    assert axis.index("├forward") == margin and axis.count("├") == 2
    assert lines[1].split(" ┤")[0].strip() == autockpt.solvers.format_bytes(timeline.peak_bytes)
