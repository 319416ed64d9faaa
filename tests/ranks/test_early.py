"""Replays that begin before their gradient is there, seen as events of the step. Nothing here depends on time."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed

from .conftest import Both

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

PARTS = 4
WHOLE = {"solver": "all"}
"""Recomputes whole calls, whatever they were measured to take."""

ALWAYS = {"recompute": "blocks.*", **WHOLE}
FIRST = {"recompute": "blocks.0", "keep": ["blocks.1", "blocks.2"], **WHOLE}


def early(found: dict[str, Any]) -> list[int]:
    """The microbatches whose replay has begun when their gradient arrives; each has a replay."""
    seen = [tuple(each) for each in found["seen"]]
    assert sorted(seen) == sorted((what, part) for part in range(PARTS) for what in ("gradient", "replay"))
    return [part for part in range(PARTS) if seen.index(("replay", part)) < seen.index(("gradient", part))]


def hold(found: dict[str, Any]) -> None:
    assert found["same"]
    assert max(found["held"]) <= found["budget"] and found["held"][-1] <= found["predicted"]


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_replays_while_the_next_one_still_holds_its_gradient_back(both: Both, schedule: str) -> None:
    """The last stage sends no gradient before the first has begun its replay: it would wait in vain otherwise."""
    first, last = both("early.events", schedule=schedule, parts=PARTS, share=1.0, waits=[*range(PARTS)], **ALWAYS)
    assert (early(first), early(last)) == ([*range(PARTS)], [])
    hold(first)
    hold(last)


def test_a_replay_waits_where_it_would_stand_beside_the_peak(both: Both) -> None:
    """As backward of the first microbatch begins, all that later blocks have saved is still there."""
    first, last = both("early.events", schedule="gpipe", parts=PARTS, share=1.0, waits=[1, 2, 3], **FIRST)
    assert (early(first), early(last)) == ([1, 2, 3], [])
    hold(first)
    hold(last)


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_step_is_the_same_without(both: Both, schedule: str) -> None:
    for found in both("early.events", schedule=schedule, parts=PARTS, share=1.0, off=True, **ALWAYS):
        assert early(found) == []
        hold(found)
