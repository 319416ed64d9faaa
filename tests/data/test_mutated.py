"""Damaged files: each is refused by one short error of the library's own, or is as good as one that `save` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from autockpt import AutockptError, InvalidFile, Plan, Profile, Segment, frontier, solve
from tests.data.mutations import damaged
from tests.doors import data_files
from tests.handmade import chain_profile

PROFILES, PLANS, AT_ONCE = 700, 1500, 50
MOST_LETTERS = 700

MOST = 2**60


def written(document: Profile | Plan) -> str:
    return data_files.encode(document).decode()


def nonsense(value: Any, name: str = "") -> Iterator[str]:
    """Yield bytes and seconds that cannot be."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from nonsense(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from nonsense(each, name)
    elif name.endswith(("bytes", "seconds")) and name != "other_bytes" and value is not None and not 0 <= value < MOST:
        yield f"{name} {value}"


def read(kind: type[Profile | Plan], data: bytes) -> Profile | Plan | None:
    """Return what was read; None where it is refused as it should be."""
    try:
        found = data_files.decode(data, kind, source="file.json")
    except InvalidFile as error:
        assert str(error) and len(str(error)) <= MOST_LETTERS
        return None
    assert not list(nonsense(json.loads(written(found))))
    return found


@pytest.fixture(scope="module")
def profiles() -> list[str]:
    return [written(chain_profile(3, notes=("a note",))), written(chain_profile(2))]


@pytest.fixture(scope="module")
def plans() -> list[str]:
    inner = Segment(calls=("h.1.attn#0",), inner=(Segment(calls=("h.1.attn.q#0", "h.1.attn.k#0"), cuts=(0, 1)),))
    cut = Segment(calls=("h.0#0", "h.1#0", "h.2#0"), cuts=(0, 2, 1), inner=(inner,))
    made = (
        solve(chain_profile(), "80MiB", seconds=1),
        Plan.of(["h.0", ["h.1.attn", "h.1.mlp"]]),
        Plan(segments=(cut,)),
    )
    return [written(each) for each in made]


@pytest.mark.parametrize("first", range(0, PROFILES, AT_ONCE))
def test_a_damaged_profile_is_refused_or_can_be_used(profiles: list[str], first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        found = read(Profile, damaged(profiles[seed % len(profiles)], seed))
        if isinstance(found, Profile):
            _use(found)


def _use(profile: Profile) -> None:
    profile.explain()
    for budget in ("lowest", max(profile.plain_peak_bytes // 2, 1)):
        try:
            solve(profile, budget, solver="chain", seconds=0.1).explain(profile)
        except AutockptError as error:
            assert len(str(error)) <= 2 * MOST_LETTERS
    frontier(profile, points=2, solver="none").explain()


@pytest.mark.parametrize("first", range(0, PLANS, AT_ONCE))
def test_a_damaged_plan_is_refused_or_can_be_used(plans: list[str], first: int) -> None:
    profile = chain_profile()
    for seed in range(first, first + AT_ONCE):
        plan = read(Plan, damaged(plans[seed % len(plans)], seed))
        if isinstance(plan, Plan):
            plan.explain()
            try:
                assert plan.timeline(profile).peak_bytes > 0
            except AutockptError as error:  # it names calls that the step does not have
                assert len(str(error)) <= MOST_LETTERS


def test_a_clock_of_more_ticks_than_a_step_has_is_refused_before_anything_is_laid_out_over_it() -> None:
    """It took all memory of the machine."""
    document = json.loads(written(chain_profile()))
    document["ticks"] = 10**9
    with pytest.raises(InvalidFile, match="the clock has 1,000,000,000 ticks"):
        data_files.decode(json.dumps(document).encode(), Profile, source="file.json")


def test_more_bytes_than_any_memory_has_are_refused() -> None:
    """They overflowed in a solver."""
    document = json.loads(written(chain_profile()))
    for bytes_ in (2**62, 2**70):
        document["tensors"]["bytes"][0] = bytes_
        with pytest.raises(InvalidFile, match=r"Expected `int` <= |out of range"):
            data_files.decode(json.dumps(document).encode(), Profile, source="file.json")


def test_what_is_let_go_of_before_it_is_read_is_refused() -> None:
    """Its replay had nothing to fill, and candidates ended in a ValueError."""
    document = json.loads(written(chain_profile()))
    saves = document["saves"]
    saves["release"][0] = saves["unpack"][0]
    with pytest.raises(InvalidFile, match="let go of before it is read"):
        data_files.decode(json.dumps(document).encode(), Profile, source="file.json")
