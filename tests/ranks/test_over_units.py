"""Segments over several units of FSDP2: bit for bit the plain training, and what is gathered for them again."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed

from .conftest import Both
from .models import Shared
from .over_units import STEPS

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

FSDP = Shared(by="fsdp")
BOUNDARY_BYTES = 4 * 8 * 64 * 64

BLOCKS = [[f"blocks.{number}"] for number in range(4)]
PAIRS = [["blocks.0", "blocks.1"], ["blocks.2", "blocks.3"]]
ONE = [["blocks.0", "blocks.1", "blocks.2", "blocks.3"]]
BESIDE = [["words", "blocks.0", "blocks.1"], ["blocks.2", "blocks.3", "norm"]]

WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "pairs": ({"runs": PAIRS}, 0),
    "one run": ({"runs": ONE}, 2),
    "calls beside": ({"runs": BESIDE}, 1),
    "pairs in bfloat16": ({"shared": Shared(by="fsdp", bf16=True), "runs": PAIRS}, 0),
    "one run, kept gathered": ({"shared": Shared(by="fsdp", reshard=False), "runs": ONE}, 0),
    "one run, root let go": ({"shared": Shared(by="fsdp", reshard=True), "runs": ONE}, 2),
    "one run, accumulating": ({"runs": ONE, "accumulate": 2}, 4),
    "one run, grouped": ({"shared": Shared(by="fsdp", units="grouped"), "runs": ONE}, 2),
    "one run, a part frozen": ({"shared": Shared(by="fsdp", units="frozen"), "runs": ONE}, 2),
    "one run, gloo": ({"shared": Shared(by="fsdp", quiet=False), "runs": ONE}, 2),
}
"""What is asked, and how many gathers a step has more than the plain one."""

FIRST = ("pairs", "one run, accumulating")


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in FIRST else pytest.mark.sweep) for way in WAYS])
def test_a_replay_over_units_gathers_what_is_away(both: Both, way: str) -> None:
    """The last unit's own hooks have gathered it, and what comes before it is on its way already."""
    given, more = WAYS[way]
    found = both("over_units.by_hand", **{"shared": FSDP, **given})
    for each in found:
        assert each["runs"]["differ"] == []
        assert each["runs"]["log"] == found[0]["runs"]["log"]
        assert _gathers(each["runs"]) == _gathers(each["plain"]) + more * STEPS
        assert each["runs"]["grown"][-2:] == [0, 0] or way == "one run, gloo"


def _gathers(found: dict[str, Any]) -> int:
    return sum("gather" in each.lower() for each in found["log"])


def test_a_run_of_units_holds_the_boundary_of_the_first_alone(both: Both) -> None:
    """Units are given other tensors than those that were returned before them, of the same bytes."""
    for blocks, pairs, one in both("over_units.held", plans=[BLOCKS, PAIRS, ONE]):
        assert (blocks - pairs, blocks - one) == (2 * BOUNDARY_BYTES, 3 * BOUNDARY_BYTES)
