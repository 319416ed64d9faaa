"""Pins on a profile made by hand: which patterns match, what they forbid and demand, and how they are refused."""

from __future__ import annotations

import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autockpt
from autockpt import Infeasible, PinError, Plan, Profile, Segment
from autockpt.solvers import SOLVERS, format_bytes
from tests.doors import Candidates, FunctionTable, Pins, RefusedPart, find_candidates
from tests.doors import with_pins as bind

from ..handmade import chain_profile

MIB = 2**20
PROFILE = chain_profile()
FOUND = find_candidates(PROFILE)
NAMES = [call.name for call in PROFILE.calls[1:]]

any_solver = pytest.mark.parametrize("solver", sorted(SOLVERS))


def pin(candidates: Candidates, **pins: Any) -> Candidates:
    return bind(candidates, Pins.of(pins.get("keep", ()), pins.get("recompute", ())))


def names(candidates: Candidates) -> set[str]:
    return {candidate.name for candidate in candidates.problem.candidates}


def solved(budget: int, solver: str = "auto", **pins: Any) -> Plan:
    """The plan for a budget or, where that is too little, for the least that the solver manages with."""
    try:
        return autockpt.solve(PROFILE, budget, solver=solver, **pins)
    except Infeasible as error:
        return autockpt.solve(PROFILE, error.minimum_bytes, solver=solver, **pins)


def covered(plan: Plan) -> set[str]:
    """Keys of all the calls inside the segments of a plan."""
    records = {call.key: i for i, call in enumerate(PROFILE.calls)}
    spans = [(records[s.calls[0]], PROFILE.calls[records[s.calls[-1]]].stop) for s in plan.segments]
    return {PROFILE.calls[call].key for start, stop in spans for call in range(start, stop)}


@any_solver
@pytest.mark.parametrize("budget_mib", [60, 90, 10**6])
def test_every_solver_honours_pins(solver: str, budget_mib: int) -> None:
    plan = solved(budget_mib * MIB, solver, keep="h.0.attn", recompute=["h.2.mlp", "h.3"])
    assert {"h.2.mlp#0", "h.3#0", "h.3.attn#0", "h.3.mlp#0"} <= covered(plan)
    assert covered(plan).isdisjoint({"h.0#0", "h.0.attn#0"})
    assert plan.pinned_keep == ("h.0.attn",)
    assert plan.pinned_recompute == ("h.2.mlp", "h.3")
    assert solver == "auto" or plan.solver == solver


def test_without_pins_the_same_budget_gives_another_plan() -> None:
    assert not {"h.2.mlp#0", "h.3#0"} <= covered(solved(10**6 * MIB))
    assert "h.0.attn#0" in covered(solved(60 * MIB))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("h.0.attn", {"h.0.attn#0"}),
        ("h.0.attn#0", {"h.0.attn#0"}),
        ("*.attn", {"h.0.attn#0", "h.1.attn#0", "h.2.attn#0", "h.3.attn#0"}),
        ("h.[12].mlp", {"h.1.mlp#0", "h.2.mlp#0"}),
        ("h.?", {f"h.{i}#0" for i in range(4)}),
        ("h.0*", {"h.0#0", "h.0.attn#0", "h.0.mlp#0"}),
    ],
)
def test_a_kept_call_is_in_no_candidate(pattern: str, expected: set[str]) -> None:
    left = names(pin(FOUND, keep=pattern))
    for candidate, run in zip(FOUND.problem.candidates, FOUND.replays, strict=True):
        inside = {PROFILE.calls[i].key for i in range(candidate.start, candidate.stop)}
        around = {key for member in run.members for key in _around(member)}
        assert (candidate.name in left) == (not expected & (inside | around)), candidate.name


def _around(call: int) -> list[str]:
    keys = []
    while call > 0:
        keys.append(PROFILE.calls[call].key)
        call = PROFILE.calls[call].parent
    return keys


@settings(max_examples=60)
@given(st.sets(st.sampled_from(NAMES), max_size=3), st.sets(st.sampled_from(NAMES), max_size=3), st.data())
def test_drawn_pins_are_honoured_or_refused(keep: set[str], recompute: set[str], data: st.DataObject) -> None:
    solver = data.draw(st.sampled_from(sorted(set(SOLVERS) - {"ilp", "auto"})))
    try:
        plan = solved(data.draw(st.integers(40, 150)) * MIB, solver, keep=sorted(keep), recompute=sorted(recompute))
    except PinError:
        assert recompute
        assert (
            any(a == b or a.startswith(f"{b}.") for a in recompute for b in keep)  # contradictory
            or "h.1.attn" in recompute  # refused
            or any(b.startswith(f"{a}.") for a in recompute for b in keep)  # no segment around the one keeps the other
        )
        return
    inside = covered(plan)
    assert {f"{name}#0" for name in recompute} <= inside
    assert not any(key == f"{name}#0" or key.startswith(f"{name}.") for name in keep for key in inside)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"keep": "h.0.atn"}, r"no call of the step matches 'h\.0\.atn'; the nearest names are .*'h\.0\.attn'"),
        ({"recompute": ["*.mpl"]}, r"matches '\*\.mpl'; the nearest names are 'h\.0\.mlp'"),
        ({"keep": "H.0"}, r"matches 'H\.0'"),
        ({"keep": "h.0#1"}, r"matches 'h\.0#1'; the nearest names are .*'h\.0#0'"),
        ({"keep": "lm_head"}, "matches 'lm_head'; none has a name like it"),
        (
            {"keep": "", "recompute": "h.0"},
            "'h.0#0' matches recompute='h.0' and lies in the model, which matches keep=''",
        ),
        ({"keep": [3]}, "a pin is a pattern of qualified names, such as .* got 3"),
        (
            {"keep": "*.mlp", "recompute": "h.2.*"},
            r"'h\.2\.mlp#0' matches recompute='h\.2\.\*' and matches keep='\*\.mlp'",
        ),
        (
            {"keep": "h.2", "recompute": "h.2.mlp"},
            r"'h\.2\.mlp#0' matches recompute='h\.2\.mlp' and lies in 'h\.2#0', which matches keep='h\.2'",
        ),
        (
            {"recompute": "h.1.attn"},
            r"'h\.1\.attn#0', which matches recompute='h\.1\.attn', cannot be recomputed: .*: it changes a buffer",
        ),
        (
            {"keep": "h.2.attn", "recompute": "h.2"},
            r"'h\.2#0', .* whatever recomputes it also runs again what keep='h\.2\.attn' wants kept",
        ),
    ],
)
def test_pins_that_cannot_be_honoured_say_why(pins: dict[str, Any], message: str) -> None:
    with pytest.raises(PinError, match=message):
        autockpt.solve(PROFILE, "1GB", **pins)


def test_a_call_that_saves_nothing_is_not_worth_recomputing() -> None:
    saves = PROFILE.saves
    of_others = [i for i, call in enumerate(saves.call) if PROFILE.calls[call].name != "h.2.mlp"]
    columns = {name: tuple(getattr(saves, name)[i] for i in of_others) for name in saves.__struct_fields__}
    parts = {name: getattr(PROFILE, name) for name in PROFILE.__struct_fields__}
    profile = type(PROFILE)(**parts | {"saves": type(saves)(**columns)})
    with pytest.raises(PinError, match=r"'h\.2\.mlp#0'.*: it saves nothing for backward"):
        autockpt.solve(profile, "1GB", recompute="h.2.mlp")
    assert autockpt.solve(profile, "1GB", recompute="h.2*").segments  # inside a call that is recomputed it does no harm


@any_solver
def test_an_unreachable_budget_names_the_minimum_with_and_without_pins(solver: str) -> None:
    with pytest.raises(Infeasible) as free:
        autockpt.solve(PROFILE, 1, solver=solver)
    assert free.value.unpinned_minimum_bytes is None
    with pytest.raises(Infeasible) as caught:
        autockpt.solve(PROFILE, 2, solver=solver, keep="*.mlp")
    error = caught.value
    assert error.unpinned_minimum_bytes == free.value.minimum_bytes <= error.minimum_bytes
    reached, without = format_bytes(error.minimum_bytes), format_bytes(free.value.minimum_bytes)
    assert f" is {reached} with keep='*.mlp', and {without} without\n" in str(error)
    assert str(error).count("\n") <= 5
    assert autockpt.solve(PROFILE, error.minimum_bytes, solver=solver, keep="*.mlp").peak_bytes == error.minimum_bytes
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.unpinned_minimum_bytes == error.unpinned_minimum_bytes


def test_no_pins_change_nothing() -> None:
    assert pin(FOUND) is FOUND
    assert "Pinned" not in solved(60 * MIB).explain()


def test_a_plan_remembers_its_pins(tmp_path: Path) -> None:
    plan = solved(90 * MIB, keep=("h.0.attn", "h.1"), recompute="*.2.mlp")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert "Pinned: keep [h.0.attn, h.1]; recompute [*.2.mlp]" in plan.explain()


def with_functions(profile: Profile) -> Profile:
    """Let each call that calls no other call one torch function."""
    leaves = [i for i, call in enumerate(profile.calls) if call.stop == i + 1]
    calls = [profile.calls[i] for i in leaves]
    return msgspec.structs.replace(
        profile,
        functions=FunctionTable(
            call=tuple(leaves),
            name=("tanh",) * len(leaves),
            occurrence=(0,) * len(leaves),
            enter=tuple(call.enter + 1 for call in calls),
            exit=tuple(call.exit for call in calls),
            seconds=tuple(call.forward_seconds for call in calls),
            reads=tuple((call.arguments[0].tensor,) for call in calls),
            makes=((),) * len(leaves),
            alias=(False,) * len(leaves),
            mutates=(False,) * len(leaves),
            draws=(False,) * len(leaves),
            arguments=((),) * len(leaves),
        ),
    )


def without(candidates: Candidates, *names: str) -> Candidates:
    """The candidates but for some."""
    left = [i for i, candidate in enumerate(candidates.problem.candidates) if candidate.name not in names]
    stated = tuple(candidates.problem.candidates[i] for i in left)
    return dataclasses.replace(
        candidates,
        problem=dataclasses.replace(candidates.problem, candidates=stated),
        replays=tuple(candidates.replays[i] for i in left),
    )


def test_a_pinned_call_is_a_segment_of_its_own() -> None:
    """Pins on all blocks had become one replay of all: only seconds counted."""
    inside = {f"h.{i}{part}#0" for i in range(4) for part in ("", ".attn", ".mlp")}
    assert names(pin(FOUND, recompute="h.?")) == {f"h.{i}#0" for i in range(4)}
    left = names(pin(FOUND, recompute="h.2.mlp"))
    assert {"h.2.mlp#0", "h.2.attn#0", "h.0#0 … h.1#0"} <= left
    assert left & inside == inside - {"h.2#0", "h.1.attn#0"}
    assert not any("h.2#0" in name or "h.3#0" in name for name in left if "…" in name)


def test_a_call_that_frees_nothing_by_itself_lies_in_the_smallest_segment_around_it() -> None:
    left = names(pin(without(FOUND, "h.2.mlp#0"), recompute="h.2.mlp"))
    around = [name for name in left if name in ("h.2#0", "h.2.attn#0 … h.2.mlp#0") or name.endswith("h.2#0")]
    assert around == ["h.2.attn#0 … h.2.mlp#0"]


def test_functions_that_do_not_run_again_break_a_recompute() -> None:
    """A twin of h.2 that leaves all of its attention alone stands for what a menu would give."""
    found = find_candidates(with_functions(PROFILE))
    nodes = [node.key for node in found.index.nodes]
    whole = next(i for i, candidate in enumerate(found.problem.candidates) if candidate.name == "h.2#0")
    twin = dataclasses.replace(found.problem.candidates[whole], name="h.2#0 in part", partial=True)
    alone = frozenset({nodes.index("h.2.attn#0/tanh#0")})
    both = dataclasses.replace(
        found,
        problem=dataclasses.replace(found.problem, candidates=(*found.problem.candidates, twin)),
        replays=(*found.replays, dataclasses.replace(found.replays[whole], alone=alone)),
    )
    assert names(pin(both, keep="h.2.attn")).isdisjoint({"h.2#0", "h.2#0 in part"})
    again = names(pin(without(both, "h.2.attn#0", "h.2.attn#0 … h.2.mlp#0"), recompute="h.2.attn"))
    assert "h.2#0" in again
    assert "h.2#0 in part" not in again
    assert "h.2#0 in part" in names(pin(both, recompute="h.2"))


def test_pins_that_need_overlapping_segments_are_refused_together() -> None:
    """Two runs that share a call are the only ways to recompute what lies at their ends."""
    runs = [i for i, c in enumerate(FOUND.problem.candidates) if c.name in ("h.0#0 … h.1#0", "h.1#0 … h.2#0")]
    few = dataclasses.replace(
        FOUND,
        problem=dataclasses.replace(FOUND.problem, candidates=tuple(FOUND.problem.candidates[i] for i in runs)),
        replays=tuple(FOUND.replays[i] for i in runs),
    )
    assert pin(few, recompute="h.0").problem.required
    with pytest.raises(PinError, match=re.escape("recompute=('h.0', 'h.2') cannot be honoured together")):
        pin(few, recompute=["h.0", "h.2"])


@pytest.mark.parametrize("length", [7, 45])
def test_segments_of_any_number_of_layers_are_candidates_where_they_are_named(length: int) -> None:
    """Of a long row few lengths of runs are: the others had become segments of fewer layers."""
    plan = autockpt.solve(chain_profile(60), "10GB", solver=f"uniform:{length}")
    expected = [tuple(f"h.{i}#0" for i in range(first, min(first + length, 60))) for first in range(0, 60, length)]
    assert sorted(segment.calls for segment in plan.segments) == sorted(expected)
    found = autockpt.frontier(chain_profile(60), solver=f"uniform:{length}", points=2, seconds=1.0)
    assert [each.peak_bytes for each in found.plans[1:]] == [plan.peak_bytes]


@any_solver
@pytest.mark.parametrize("name", ["", "Chain"])
def test_the_model_itself_is_one_run_of_its_calls(solver: str, name: str) -> None:
    plan = autockpt.solve(PROFILE, "1GB", solver=solver, recompute=name)
    assert [segment.calls for segment in plan.segments] == [tuple(f"h.{i}#0" for i in range(4))]
    assert autockpt.solve(PROFILE, "1GB", solver=solver, keep=name).segments == ()


def test_a_model_that_cannot_be_replayed_says_which_call_is_to_blame() -> None:
    h_2 = next(i for i, call in enumerate(PROFILE.calls) if call.name == "h.2")
    refused = msgspec.structs.replace(PROFILE, refusals=(RefusedPart("call", h_2, "it draws from elsewhere"),))
    said = "the whole model, which recompute='' names, .*: 'h.2#0' cannot be replayed exactly: it draws from elsewhere"
    with pytest.raises(PinError, match=said):
        autockpt.solve(refused, "1GB", recompute="")


@pytest.mark.parametrize("pins", [{"keep": "h.0"}, {"recompute": ["h.0"]}])
def test_pins_bind_a_solver_and_no_plan(pins: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    plan = Plan(segments=(Segment(calls=("0#0",)),))
    with pytest.raises(PinError, match="bind a solver, and a plan is taken as it is"):
        autockpt.apply(model, plan=plan, **pins)
    with pytest.raises(PinError, match="bind a solver, and a plan is taken as it is"):
        autockpt.verify(model, torch.randn(2, 2), plan=plan, **pins)
