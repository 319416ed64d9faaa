"""Steps on two clocks whose host's seconds were measured: the step says them, and pages say so."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autockpt
from autockpt import InvalidFile, Plan, Profile
from tests.choose.test_by_clocks import budget, step
from tests.doors import HostSeconds, ProfileIndex, find_planned, host_mode, paces_of


def measured(forward: float, backward: float, **changed: Any) -> Profile:
    """The step that its host paces, recorded on a device whose host took so many seconds; calls take equal shares."""
    profile = step("host")
    shares = [call.stop - number for number, call in enumerate(profile.calls)]  # of calls inside calls too
    host = HostSeconds(
        call_seconds=tuple(forward * share / len(shares) for share in shares),
        forward_seconds=forward,
        backward_seconds=backward,
    )
    return msgspec.structs.replace(profile, **{"mode": "measured", "device": "NVIDIA Test", "host": host, **changed})


def plain_clocks(profile: Profile) -> Any:
    found = find_planned(profile, Plan()).clocks(())
    assert found is not None
    return found


@given(
    forward=st.floats(1e-4, 10.0),
    backward=st.floats(1e-4, 10.0),
    slowdown=st.sampled_from((None, 0.1, 1.0, 10.0)),
)
def test_a_host_takes_what_it_was_seen_to_take(forward: float, backward: float, slowdown: float | None) -> None:
    """However fast or slow."""
    profile = measured(forward, backward, host_slowdown=slowdown)
    paces = paces_of(profile)
    assert paces is not None and host_mode(profile) == "measured"
    host, _ = paces
    assert host.launching_seconds(len(profile.ops)) == pytest.approx(forward + backward)
    assert host.forward_seconds / host.backward_seconds == pytest.approx(
        forward / backward * host.backward_kernels, rel=1e-6
    )
    assert 0 < host.costs.replay_seconds < math.inf


def test_what_recomputing_costs_follows_the_host_that_was_measured() -> None:
    """By how fast it is at that, and where that is not known, by how fast it launches."""
    slow, slower = (measured(0.1 * by, 0.1 * by) for by in (1, 2))
    assert slow.host_slowdown is None
    costs = [paces[0].costs.replay_seconds for each in (slow, slower) if (paces := paces_of(each))]
    assert costs[1] == pytest.approx(2 * costs[0])
    assert ProfileIndex(slower).host.replay_seconds == pytest.approx(2 * ProfileIndex(slow).host.replay_seconds)
    assert ProfileIndex(slow).host.replay_seconds < costs[0]
    known = [msgspec.structs.replace(each, host_slowdown=0.74) for each in (slow, slower)]
    costs = [paces[0].costs.replay_seconds for each in known if (paces := paces_of(each))]
    assert costs[1] == pytest.approx(costs[0])


@pytest.mark.parametrize(("by", "computes", "paced"), [(1.0, 0.3, True), (1.0, 1.0, False), (0.1, 1.0, False)])
def test_the_clock_that_sets_the_pace_is_that_of_the_measured_step(by: float, computes: float, paced: bool) -> None:
    """A host that takes as long as the step sets its pace if the device computes for a part of it alone."""
    seconds = by * step("host").plain_seconds
    profile = measured(0.4 * seconds, 0.6 * seconds)
    assert profile.host is not None
    host = msgspec.structs.replace(profile.host, device_share=computes)
    clocks = plain_clocks(msgspec.structs.replace(profile, host=host))
    assert clocks.is_paced_by_host == paced
    assert clocks.step_seconds == pytest.approx(profile.plain_seconds, rel=0.2)


def test_calls_that_take_more_of_the_host_have_it_where_they_are() -> None:
    """The queue is dry behind a call that takes the host long; in all, the host takes what it took."""
    profile = measured(0.02, 0.02, plain_seconds=0.5)
    assert profile.host is not None
    one = max(profile.ops.call)  # the innermost call of the last operators
    uneven = [0.0] * len(profile.calls)
    number = one
    while number >= 0:
        uneven[number], number = profile.host.forward_seconds, profile.calls[number].parent
    host = msgspec.structs.replace(profile.host, call_seconds=tuple(uneven))
    even, late = plain_clocks(profile), plain_clocks(msgspec.structs.replace(profile, host=host))
    assert late.host_seconds >= 0.04 * (1 - 1e-6) and even.host_seconds >= 0.04 * (1 - 1e-6)
    assert late.step_seconds > even.step_seconds


def test_pages_say_that_the_host_was_measured() -> None:
    profile = measured(0.02, 0.03)
    plan = autockpt.solve(profile, budget(profile, 0.6), solver="uniform")
    said = "the host's seconds were measured beside the device's"
    assert plan.host_mode == "measured"
    by_hand = Plan.of([segment.calls for segment in plan.segments[:1]])
    pages = [plan.explain(profile), by_hand.explain(profile)]
    pages.append(autockpt.frontier(profile, points=3, solver="uniform").explain())
    assert all(said in " ".join(page.split()) for page in pages)


def test_what_is_discarded_is_assumed_and_pages_say_why() -> None:
    why = "up to 1,400 launches lay between two waits for the device, whose queue may have been full"
    profile = msgspec.structs.replace(measured(0.1, 0.1), host=HostSeconds(discarded=why))
    assert paces_of(profile) == paces_of(msgspec.structs.replace(profile, host=None))
    plan = autockpt.solve(profile, budget(profile, 0.6), solver="uniform")
    assert plan.host_mode is None
    assert f"assumed as on one H100: {why}" in " ".join(plan.explain(profile).split())


def test_several_devices_or_streams_have_the_device_alone() -> None:
    why = "parameters lie on cuda:1 too, and only what is allocated on cuda:0 is seen"
    profile = msgspec.structs.replace(measured(0.1, 0.1), host=HostSeconds(alone=why))
    assert paces_of(profile) is None and host_mode(profile) is None
    plan = autockpt.solve(profile, budget(profile, 0.6), solver="uniform")
    assert plan.host_pace_seconds is None and plan.host_mode is None
    assert f"the device's alone: {why}" in " ".join(plan.explain(profile).split())


def test_files_have_the_hosts_seconds_and_older_ones_need_none(tmp_path: Any) -> None:
    profile = measured(0.02, 0.03)
    profile.save(tmp_path / "new.json")
    assert Profile.load(tmp_path / "new.json") == profile
    msgspec.structs.replace(profile, host=None).save(tmp_path / "old.json")
    assert '"host"' not in (tmp_path / "old.json").read_text()
    assert Profile.load(tmp_path / "old.json").host is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"call_seconds": (0.01,)}, "calls, and the step has"),
        ({"forward_seconds": 0.001}, "a call takes more of the host"),
        ({"discarded": "a full queue"}, "are said not to be"),
        ({"backward_seconds": math.nan}, "below 0 s or no number"),
        ({"backward_seconds": -1.0}, "below 0 s or no number"),
    ],
)
def test_seconds_of_the_host_that_contradict_the_step_are_refused(changed: dict[str, Any], said: str) -> None:
    profile = measured(0.02, 0.03)
    assert profile.host is not None
    with pytest.raises(InvalidFile, match=said):
        msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, **changed))
