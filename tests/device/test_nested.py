"""Replays in parts on a device: its streams, its generator, its allocator."""

from __future__ import annotations

from typing import Literal

import autockpt
from autockpt import Plan, Segment
from tests.device.twin import blocks, outcome, plain_and_planned
from tests.rows import crossed


@crossed(
    cuts=[(0, 0, 1, 0, 0, 0), (0, 3, 2, 1, 2, 1)],
    inside={"": False, "inside": True},
    check=["never", "always"],
)
def test_a_plan_in_parts_is_the_plain_step(
    cuts: tuple[int, ...], inside: bool, check: Literal["never", "always"]
) -> None:
    names = [name for name, _ in blocks(6)[0].named_children()][: len(cuts)]
    inner = tuple(Segment(calls=(f"{name}.0#0", f"{name}.1#0", f"{name}.2#0")) for name in names if inside)
    plan = Plan(segments=(Segment(calls=tuple(f"{name}#0" for name in names), cuts=cuts, inner=inner),))
    found = plain_and_planned(
        lambda: blocks(6), apply=lambda run, budget: autockpt.apply(run.model, plan=plan, check=check)
    )
    assert outcome(found) == [True] * len(found.plain.left)
    assert max(found.planned.peaks[2:]) < max(found.plain.peaks[2:])
