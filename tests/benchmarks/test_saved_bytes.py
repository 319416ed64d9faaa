"""Selective candidates of real models, at the point between forward and backward: held against menu and bound."""

from __future__ import annotations

import functools

import pytest

import autockpt
from autockpt import Profile
from autockpt.solvers import Problem, make_menu, simulate, solve
from benchmarks.saved_bytes.bound import saved_bound, saved_dataflow
from benchmarks.saved_bytes.problem import at_apex, timed_by_operators
from tests.doors import Candidates, find_candidates, replay_of, state_flow
from tests.zoo import build

MODELS = ["gpt2", "t5", "densenet"]

CLOSE = 1e-4
"""What rounding to six digits may do to a sum of seconds."""
ROUNDING = 1e-6
"""And to a reading of the clock, of which a span has two."""


@functools.lru_cache
def case(name: str) -> tuple[Profile, Candidates, Problem]:
    model = build(name, short=True)
    candidates = find_candidates(timed_by_operators(autockpt.profile(model.model, model.kwargs)))
    return candidates.index.profile, candidates, at_apex(candidates)


@pytest.mark.parametrize("name", MODELS)
def test_a_replay_holds_and_costs_what_its_menu_says(name: str) -> None:
    _, candidates, _ = case(name)
    index = candidates.index
    seen: dict[tuple[str, int], int] = {}
    for replay in candidates.replays:
        if len(replay.members) == 1 and (replay.alone):
            call = replay.members[0]
            seen.setdefault((index.nodes[call].record.signature, index.nodes[call].stop - call), call)
    compared = 0
    for call in seen.values():
        stated = state_flow(index, (call,))
        assert stated is not None
        units, flow = stated
        free_seconds = sum(index.seconds[f] for f in index.within((call,), index.functions) if index.is_free(f))
        for entry in make_menu(flow):
            way = replay_of(index, (call,), [f for i, f in enumerate(units) if i not in entry.recompute])
            assert way is not None
            if not way.alone:
                continue  # what it leaves out comes after the end of any replay
            # A counter is added to in any case, which is no unit.
            least_seconds, most_seconds = entry.recompute_seconds, entry.recompute_seconds + free_seconds
            rounding_seconds = (
                CLOSE * way.segment.recompute_seconds + 2 * ROUNDING * index.nodes[call].record.exit_seconds
            )
            assert least_seconds - rounding_seconds <= way.segment.recompute_seconds <= most_seconds + rounding_seconds
            assert way.segment.kept_bytes == entry.held_bytes
            compared += 1
    assert compared >= 10


@pytest.mark.parametrize("name", [*MODELS, "gpt2-hidden-states", "unet"])
@pytest.mark.parametrize("share", [0.7, 0.5])
def test_no_plan_beats_the_bound(name: str, share: float) -> None:
    profile, _, problem = case(name)
    held_bytes = int(share * simulate(problem, ()).peak_bytes)
    bound = saved_bound(saved_dataflow(profile), held_bytes)
    plan = solve(problem, held_bytes, solver="ilp", seconds=1.0)
    assert 0.0 < bound <= plan.recompute_seconds * (1 + 1e-9)
