"""What may be recomputed, worked out by hand on a chain of blocks. Needs no torch."""

from __future__ import annotations

import msgspec
import pytest

from autockpt import Profile
from autockpt.solvers import Candidate, simulate
from tests.doors import ArgumentRecord, Candidates, PlannedReplay, candidate_runs, find_candidates
from tests.handmade import MIB, chain_profile
from tests.hosts import host


def named(candidates: Candidates, name: str) -> tuple[Candidate, PlannedReplay]:
    names = [candidate.name for candidate in candidates.problem.candidates]
    return candidates.problem.candidates[names.index(name)], candidates.replays[names.index(name)]


def test_a_block_frees_what_it_saves_and_holds_what_it_reads() -> None:
    candidates = find_candidates(chain_profile())
    _, run = named(candidates, "h.2#0")
    # 8 of attn, 16 of mlp, and the 2 between them; the block's own argument stays.
    assert run.segment.freed_bytes == 26 * MIB
    assert run.segment.boundary_bytes == 2 * MIB


def test_a_replay_stops_at_the_last_save() -> None:
    profile = chain_profile()
    candidate, _ = named(find_candidates(profile), "h.2#0")
    # All of attn (10 ms), and nothing of mlp, which saves at its very beginning.
    assert candidate.recompute_seconds == pytest.approx(0.01)
    with host(replay_seconds=0.5):
        assert named(find_candidates(profile), "h.2#0")[0].recompute_seconds == pytest.approx(0.51)
    with host(save_seconds=0.5):
        assert named(find_candidates(profile), "h.2#0")[0].recompute_seconds == pytest.approx(0.01 + 4 * 0.5)


def test_a_segment_of_several_calls_costs_the_host_more() -> None:
    profile = chain_profile()
    fast = find_candidates(profile)
    with host(member_seconds=0.5):
        slow = find_candidates(profile)
    assert max(len(run.members) for run in slow.replays) > 2
    for before, after, run in zip(fast.problem.candidates, slow.problem.candidates, slow.replays, strict=True):
        more_seconds = after.recompute_seconds - before.recompute_seconds
        assert more_seconds == pytest.approx(0.5 * (len(run.members) - 1), abs=1e-9)


def test_a_refused_call_is_in_no_run_and_the_reason_is_kept() -> None:
    profile = chain_profile()
    candidates = find_candidates(profile)
    refused = {profile.calls[call].key: reason for call, reason in candidates.refused}
    assert refused == {"h.1.attn#0": "it changes a buffer that nothing can restore"}
    assert not [c.name for c in candidates.problem.candidates if "h.1.attn" in c.name]


def test_the_last_segment_before_the_loss_frees_nothing_at_the_peak() -> None:
    candidates = find_candidates(chain_profile())
    names = [candidate.name for candidate in candidates.problem.candidates]
    plain = simulate(candidates.problem, ()).peak_bytes
    assert simulate(candidates.problem, (names.index("h.3#0"),)).peak_bytes >= plain
    assert simulate(candidates.problem, (names.index("h.0#0"),)).peak_bytes < plain


def glue(profile: Profile, block: int) -> Profile:
    """Let the parent's own code make a block's argument, as a view or a sum would be."""
    calls = list(profile.calls)
    index = [call.key for call in calls].index(f"h.{block}#0")
    own = calls[index].arguments[0]
    calls[index] = msgspec.structs.replace(calls[index], arguments=(ArgumentRecord(tensor=own.tensor),))
    return msgspec.structs.replace(profile, calls=tuple(calls))


def test_what_the_parent_computes_between_members_belongs_to_the_boundary() -> None:
    profile = chain_profile()
    _, without = named(find_candidates(profile), "h.2#0 … h.3#0")
    _, run = named(find_candidates(glue(profile, 3)), "h.2#0 … h.3#0")
    assert without.segment.boundary_bytes == 2 * MIB
    assert run.segment.boundary_bytes == 4 * MIB
    assert run.segment.freed_bytes == without.segment.freed_bytes - 2 * MIB  # h.3 saves what is held, no new one


def test_an_argument_changed_in_place_refuses_the_call_but_not_the_run_that_makes_it() -> None:
    profile = chain_profile()
    calls = list(profile.calls)
    index = [call.key for call in calls].index("h.3#0")
    (argument,) = calls[index].arguments
    calls[index] = msgspec.structs.replace(
        calls[index], arguments=(ArgumentRecord(argument.tensor, argument.sources, True),)
    )
    candidates = find_candidates(msgspec.structs.replace(profile, calls=tuple(calls)))
    names = [candidate.name for candidate in candidates.problem.candidates]
    assert "h.3#0" not in names
    assert "h.2#0 … h.3#0" in names


def test_buffers_and_generators_are_charged() -> None:
    profile = chain_profile()
    calls = list(profile.calls)
    index = [call.key for call in calls].index("h.2.attn#0")
    calls[index] = msgspec.structs.replace(calls[index], buffers=("h.2.attn.mean",))
    calls[index - 1] = msgspec.structs.replace(calls[index - 1], draws=True)
    changed = msgspec.structs.replace(profile, calls=tuple(calls), buffer_bytes={"h.2.attn.mean": 5 * MIB})
    drawing = [msgspec.structs.replace(changed, generator_bytes=state) for state in (1, 100 * MIB)]
    (before, _), (after, run), (larger, _) = (named(find_candidates(p), "h.2#0") for p in (profile, *drawing))
    assert run.segment.buffers == ("h.2.attn.mean",)
    total = [sum(addition.bytes for addition in candidate.additions) for candidate in (before, after, larger)]
    assert total[1] - total[0] == (5 + 5) * MIB  # held, and its scratch copy
    replay_bytes = before.additions[0].bytes
    assert total[2] - total[1] == 100 * MIB - replay_bytes  # a state is read before anything is replayed


def test_long_parents_offer_the_shorter_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_runs, "MAX_RUNS_PER_PARENT", 20)
    problem = find_candidates(chain_profile(12)).problem
    lengths = [c.length for c in problem.candidates if c.name.startswith("h.") and c.stop - c.start >= 3 * c.length]
    assert len(lengths) <= 20
    assert lengths.count(1) == 12
