"""What the host of a device takes is recorded beside the device's own seconds, in steps that wait for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.doors import Clock, OwnErrors, Stamps
from tests.toys.told import Told

WIDTH = 32


def blocks(depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(depth))).cuda()


def batch(rows: int = 512) -> Tensor:
    return torch.ones(rows, WIDTH, device="cuda")


def test_a_profile_has_the_hosts_seconds_of_each_call() -> None:
    profile = autockpt.profile(blocks(), batch())
    host = profile.host
    assert host is not None and host.is_known and not host.discarded and not host.alone
    assert len(host.call_seconds) == len(profile.calls) and host.backward_seconds > 0
    assert 0 < host.call_seconds[0] <= host.forward_seconds and 0 < host.device_share <= 1
    alike = {seconds for call, seconds in zip(profile.calls, host.call_seconds, strict=True) if call.name in ("0", "1")}
    assert len(alike) == 1


def test_a_training_has_them_from_its_second_step() -> None:
    model, x = blocks(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    autockpt.apply(model, "lowest")
    for _ in range(3):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.segments
    assert plan.host_mode == "measured" and plan.host_pace_seconds is not None


def elsewhere(own: Told, x: Tensor) -> Any:
    with torch.cuda.stream(own.stream):
        return own.inner(x)


def adds_often(own: Told, x: Tensor) -> Any:
    for _ in range(500):
        x = x + 1  # saves nothing
    return own.inner(x)


def over_two_devices() -> nn.Module:
    near, far = blocks(1), blocks(1).to("cuda:1")
    return Told(lambda own, x: own.near(x) + own.far(x.to("cuda:1")).to("cuda:0"), near=near, far=far)


@pytest.mark.parametrize(
    ("make", "alone", "discarded"),
    [
        (lambda: Told(elsewhere, inner=blocks(1), stream=torch.cuda.Stream()), "several streams", ""),
        (over_two_devices, "parameters lie on cuda:1 too", ""),
        (lambda: Told(adds_often, inner=blocks(1)), "", "launches lay between two waits"),
    ],
)
def test_what_two_clocks_do_not_describe_is_said(make: Callable[[], nn.Module], alone: str, discarded: str) -> None:
    host = autockpt.profile(make(), batch(64)).host
    assert host is not None and not host.is_known
    assert alone in host.alone and discarded in host.discarded
    assert bool(host.alone) == bool(alone) and bool(host.discarded) == bool(discarded)


def test_stamps_and_waits_are_no_time_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.accumulate(itertools.repeat(1.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(now))

    class Slow(Clock):
        """Each reading and each wait takes a thousand seconds."""

        behind = True

        def stamp(self) -> object:
            return [next(now) for _ in range(1000)][-1]

        def drain(self) -> None:
            self.stamp()

    stamps = Stamps(Slow(), nn.Linear(1, 1), OwnErrors())
    for _ in range(4):
        stamps.add("pack")
        stamps.drain()
        next(now)
    assert [later - earlier for earlier, later in itertools.pairwise(stamps.host)] == [3.0] * 3
