"""Selective candidates of real models, at the point between forward and backward: held against menu and bound."""

from __future__ import annotations

import functools

import pytest

import autockpt
from autockpt import Profile
from autockpt._choose.candidates import Candidates, find_candidates
from autockpt._choose.candidates.block import state_block
from autockpt._choose.candidates.book import Book
from autockpt._choose.candidates.drafts import make_draft
from autockpt._choose.candidates.idle import is_free, name_idle
from autockpt.solvers import Problem, make_menu, simulate, solve
from benchmarks.saved_bytes.bound import saved_bound, saved_dataflow
from benchmarks.saved_bytes.problem import at_apex, timed_by_operators
from tests.zoo import build

MODELS = ["gpt2", "t5", "densenet"]

CLOSE = 1e-4
"""What rounding to six digits may do to a sum of seconds."""
ROUNDING = 1e-6
"""And to a reading of the clock, of which a span has two."""


@functools.lru_cache
def case(name: str) -> tuple[Profile, Candidates, Problem]:
    model = build(name)
    candidates = find_candidates(timed_by_operators(autockpt.profile(model.model, model.kwargs)))
    return candidates.profile, candidates, at_apex(candidates)


@pytest.mark.parametrize("name", MODELS)
def test_a_draft_holds_and_costs_what_its_menu_says(name: str) -> None:
    profile, candidates, _ = case(name)
    book = Book(profile)
    seen: dict[tuple[str, int], int] = {}
    for run in candidates.runs:
        if len(run.members) == 1 and (run.idle.keep or run.idle.skip):
            call = run.members[0]
            seen.setdefault((profile.calls[call].signature, len(book.functions_of(call))), call)
    compared = 0
    for call in seen.values():
        block = state_block(book, (call,))
        assert block is not None
        own = book.functions_of(call)
        free_seconds = sum(profile.functions.seconds[f] for f in own if is_free(book, f))
        for entry in make_menu(block.flow):
            idle = {own.start + row for row in block.idle(entry.recompute)}
            draft = make_draft(book, (call,), name_idle(book, (call,), idle))
            assert draft is not None
            if not (draft.run.idle.keep or draft.run.idle.skip):
                continue  # what it leaves out comes after the end of any replay
            # A counter is added to in any case, which is no unit.
            least_seconds, most_seconds = entry.recompute_seconds, entry.recompute_seconds + free_seconds
            rounding_seconds = CLOSE * draft.seconds + 2 * ROUNDING * profile.calls[call].exit_seconds
            assert least_seconds - rounding_seconds <= draft.seconds <= most_seconds + rounding_seconds
            assert draft.run.kept_bytes == entry.held_bytes
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
