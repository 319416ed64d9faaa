"""A step on two clocks: against an oracle of three lines, and against what an H100 took."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.two_clocks.fit import LLAMAS, Fitted, fitted, on_two_clocks, rows
from tests.doors import QUEUE, HostWork, Launches, run_on_two_clocks, simulate_two_clocks

SECONDS = st.integers(0, 1000).map(float)
WORK = st.builds(Launches, SECONDS, SECONDS, st.integers(0, 40), st.booleans()).map(
    lambda work: work if work.kernels else work._replace(device_seconds=0.0)
)


@pytest.fixture(scope="module")
def h100() -> dict[str, Fitted]:
    return fitted()


def by_hand(work: list[Launches]) -> tuple[float, float]:
    """When the host and the device have ended, by the definition."""
    launched, done = 0.0, [0.0]
    for each in work:
        if not each.kernels:
            launched += each.host_seconds
        for _ in range(each.kernels):
            launched += each.host_seconds / each.kernels
            if len(done) > QUEUE:
                launched = max(launched, done[-QUEUE])
            done.append(max(launched, done[-1]) + each.device_seconds / each.kernels)
        if each.waits:
            launched = max(launched, done[-1])
    return launched, done[-1]


@given(st.lists(WORK, max_size=60))
def test_the_step_is_the_later_of_two_clocks(work: list[Launches]) -> None:
    found = run_on_two_clocks(work)
    launched, done = by_hand(work)
    assert found.host_seconds == pytest.approx(launched)
    assert found.step_seconds == pytest.approx(max(launched, done))
    host, device = sum(each.host_seconds for each in work), sum(each.device_seconds for each in work)
    assert found.device_seconds == pytest.approx(device)
    assert max(host, device) <= found.step_seconds * (1 + 1e-9) + 1e-9
    assert found.step_seconds <= (host + device) * (1 + 1e-9) + 1e-9
    assert -1e-9 <= found.host_pace_seconds <= min(found.step_seconds, host) * (1 + 1e-9) + 1e-9


@given(st.lists(WORK, max_size=40), st.integers(0, 40), SECONDS)
def test_more_work_ends_no_earlier(work: list[Launches], place: int, more: float) -> None:
    longer = [*work[:place], Launches(more), *work[place:]]
    assert run_on_two_clocks(longer).step_seconds >= run_on_two_clocks(work).step_seconds * (1 - 1e-9)


@pytest.mark.parametrize("by", [0.0, 1e-6, 1e6])
def test_a_clock_that_takes_no_time_leaves_the_other(by: float) -> None:
    work = [Launches(3.0 * by, 2.0, 4)] * 9
    found = run_on_two_clocks(work)
    assert found.step_seconds == pytest.approx(max(27.0 * by + 0.5, 18.0 + 0.75 * by))
    assert found.host_pace_seconds == pytest.approx(27.0 * by if by > 1 else 0.75 * by, abs=1)


def test_the_host_waits_for_a_full_queue() -> None:
    found = run_on_two_clocks([Launches(0.0, float(QUEUE + 10), QUEUE + 10)])
    assert found.host_seconds == 10.0 and found.step_seconds == QUEUE + 10


def test_a_synchronization_lets_the_device_run_dry() -> None:
    one, other = Launches(1.0, 5.0, 1), Launches(4.0, 1.0, 1)
    assert run_on_two_clocks([one, other]).step_seconds == 7.0
    assert run_on_two_clocks([one._replace(waits=True), other]).step_seconds == 11.0


def test_numbers_of_replays_add_up() -> None:
    every = [HostWork(replays=1, members=2, saves=3), HostWork(units=4, met=5, launched=6)]
    assert HostWork.sum(every) == HostWork(replays=1, members=2, saves=3, units=4, met=5, launched=6)
    assert HostWork.sum([]) == HostWork()


@pytest.mark.parametrize("name", LLAMAS)
def test_what_was_fitted_is_reproduced(h100: dict[str, Fitted], name: str) -> None:
    measured, found = rows()[name], on_two_clocks(name, h100[name])
    for way in ("plain", "torch, every block"):
        assert found[way].step_seconds == pytest.approx(measured[f"{way}: step seconds"], rel=0.01)
        assert found[way].device_seconds == pytest.approx(measured[f"{way}: device works, seconds"])
        assert found[way].kernels == pytest.approx(measured[f"{way}: kernels and copies"], abs=2)


@pytest.mark.parametrize("name", LLAMAS)
def test_our_steps_follow_from_the_fit_to_others(h100: dict[str, Fitted], name: str) -> None:
    measured, found = rows()[name], on_two_clocks(name, h100[name])

    def overhead(steps: dict[str, float]) -> float:
        return steps["every block"] / steps["plain"] - 1

    seconds = {way: measured[f"{way}: step seconds"] for way in found}
    assert overhead({way: each.step_seconds for way, each in found.items()}) == pytest.approx(
        overhead(seconds), abs=0.04
    )


def test_the_host_clocks_of_a_step_that_the_device_paces(h100: dict[str, Fitted]) -> None:
    """They were not fitted: a host that is ahead mostly waits for a full queue."""
    measured, found = rows()["llama-1b"], on_two_clocks("llama-1b", h100["llama-1b"])
    for way, each in found.items():
        assert each.host_seconds == pytest.approx(measured[f"{way}: host seconds"], rel=0.1)
        assert each.host_pace_seconds < 0.15 * each.step_seconds


def test_the_host_paces_the_small_one(h100: dict[str, Fitted]) -> None:
    for each in on_two_clocks("llama-100m", h100["llama-100m"]).values():
        assert each.host_pace_seconds == pytest.approx(each.step_seconds, rel=0.01)


@pytest.mark.parametrize("by", [0.001, 1000.0])
def test_hosts_unlike_any_measured(h100: dict[str, Fitted], by: float) -> None:
    of = h100["llama-1b"]
    index, blocks, host = of.blocks.index, of.blocks.replays, of.host.scaled(by)
    plain, planned = (simulate_two_clocks(index, replays, host, of.device) for replays in ((), blocks))
    assert plain.step_seconds < planned.step_seconds
    more = planned.step_seconds - plain.step_seconds
    computes = planned.device_seconds - plain.device_seconds
    if by < 1:  # the device sets the pace, and computes what runs again
        gaps = of.device.gap_seconds * (planned.kernels - plain.kernels)
        assert more == pytest.approx(computes + gaps, rel=0.01)
    else:  # the host launches what runs again
        assert more > 100 * computes
        assert planned.host_pace_seconds == pytest.approx(planned.step_seconds, rel=0.01)


def test_segments_add_up_to_a_step(h100: dict[str, Fitted]) -> None:
    of = h100["llama-1b"]
    index, blocks = of.blocks.index, of.blocks.replays
    seconds = [
        simulate_two_clocks(index, blocks[:count], of.host, of.device).step_seconds for count in range(len(blocks) + 1)
    ]
    assert all(less < more for less, more in itertools.pairwise(seconds))
