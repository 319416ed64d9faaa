"""What a segment of a plan cannot be or have beside what else: every combination, against the pairs that exclude."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from autockpt import InvalidFile, Offload, Plan, Segment
from tests.doors import CALLED_WAITING, Moved

INNER = Segment(calls=("0.one#0",))

AXES: tuple[dict[str, dict[str, Any]], ...] = (
    {
        "": {"calls": ("0#0",)},
        "several": {"calls": ("0#0", "1#0")},
        "function": {"calls": ("0#0/tanh#0",)},
    },
    {"": {}, "units": {"keep": ("0.two#0",)}, "units skipped": {"skip": ("0.two#0",)}},
    {"": {}, "cuts": {"cuts": (0, 1)}, "wrong cuts": {"cuts": (1,)}},
    {"still": {}, "moves boundary": {"offload": "boundary"}, "moves saved": {"offload": "saved"}},
    {"": {}, "until": {"until": "1#0"}},
    {
        "": {},
        "inner": {"inner": (INNER,)},
        "inner units-inside": {"inner": (msgspec.structs.replace(INNER, keep=("0.one.0#0",)),)},
        "inner moves-inside": {"inner": (msgspec.structs.replace(INNER, offload="boundary"),)},
        "inner function-inside": {"inner": (msgspec.structs.replace(INNER, calls=("0.one#0/tanh#0",)),)},
        "inner until-inside": {"inner": (msgspec.structs.replace(INNER, until="1#0"),)},
        "inner cuts-inside": {"inner": (msgspec.structs.replace(INNER, cuts=(0,)),)},
    },
)

PLACES = {"": None, "host": Offload.of("host"), "shard": Offload.of("shard")}

EXCLUDED = {
    ("inner", "units"): "leave out its inner",
    ("inner", "moves"): "leave out its inner",
    ("units-inside",): "modules only",
    ("moves-inside",): "modules only",
    ("function-inside",): "modules only",
    ("until-inside",): "moves nothing",
    ("cuts-inside",): "cannot go in parts by the cuts",
    ("until", "still"): "moves nothing",
    ("shard", "until"): "parts of boundaries alone",
    ("shard", "saved"): "parts of boundaries alone",
    ("saved", "several"): "it is one call, without units",
    ("saved", "units"): "it is one call, without units",
    ("wrong",): "cannot go in parts by the cuts",
    ("cuts", "units"): "leave out its cuts",
    ("cuts", "moves"): "leave out its cuts",
}
"""Words of a combination that no segment has together, and a part of what is said."""


def combinations() -> Iterator[tuple[set[str], Segment, Offload | None]]:
    """Every segment that has one of each axis, under every place, with the words of what it has."""
    for *chosen, place in itertools.product(*AXES, PLACES):
        fields: dict[str, Any] = {}
        for axis, name in zip(AXES, chosen, strict=True):
            fields |= axis[name]
        words = {word for name in (*chosen, place) for word in name.split()}
        if "cuts" in words and len(fields["cuts"]) != len(fields["calls"]):
            words |= {"wrong"}  # cuts that are right for two calls
        yield words, Segment(**fields), PLACES[place]


def test_what_excludes_what_is_refused_and_nothing_else() -> None:
    allowed = 0
    for words, segment, offload in combinations():
        told = [said for pair, said in EXCLUDED.items() if words.issuperset(pair)]
        if not told:
            allowed += bool(Plan(segments=(segment,), offload=offload))
            continue
        with pytest.raises(InvalidFile) as caught:
            Plan(segments=(segment,), offload=offload)
        assert any(said in str(caught.value) for said in told), (words, str(caught.value))
    assert allowed > 50


def test_all_that_may_wait_has_a_name() -> None:
    assert set(CALLED_WAITING) == set(get_args(Moved))
