"""How slow the host is: measured beside the user's loop, written into profiles, and what costs of the host grow by."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import autockpt
from tests.doors import HostCosts, host_speed, profile_index

MEASURE = host_speed.host_slowdown.__wrapped__


def small() -> tuple[nn.Module, torch.Tensor]:
    blocks = (nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))
    return nn.Sequential(*blocks), torch.randn(64, 16)


@pytest.mark.parametrize(("times", "found"), [(1.0, 1.0), (2.5, 2.5), (0.5, 0.5), (0.0, 0.1), (1e6, 10.0)])
def test_it_is_what_a_round_takes_over_what_it_took_on_the_known_host(times: float, found: float) -> None:
    looks = itertools.count()
    clock = SimpleNamespace(thread_time=lambda: next(looks) * times * host_speed.REFERENCE_SECONDS)
    with mock.patch.object(host_speed, "time", clock):
        assert MEASURE() == pytest.approx(found)


def test_nothing_of_the_users_is_seen_or_changed() -> None:
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            FlopCounterMode(display=False) as counted,
            torch.autograd.graph.disable_saved_tensors_hooks("none here"),
            torch.device("meta"),
            torch.autocast("cpu"),
            torch.no_grad(),
        ):
            assert (MEASURE() or 0.0) > 0
    finally:
        torch.set_default_dtype(torch.float32)
    assert counted.get_total_flops() == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_where_it_cannot_be_measured_it_is_not_known() -> None:
    with mock.patch.object(host_speed, "linear", side_effect=RuntimeError("torch was changed")):
        assert MEASURE() is None
    with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
        assert MEASURE() is None


def test_a_profile_that_was_measured_has_it_and_its_file_too(tmp_path: Path) -> None:
    model, batch = small()
    profile = autockpt.profile(model, batch, loss=torch.sum)
    assert profile.host_slowdown == host_speed.host_slowdown()
    profile.save(tmp_path / "profile.json")
    assert autockpt.Profile.load(tmp_path / "profile.json") == profile


def test_where_nothing_ran_it_is_not_known(tmp_path: Path) -> None:
    model, batch = small()
    profile = autockpt.profile(model, batch, loss=torch.sum, mode="fake")
    assert profile.host_slowdown is None
    profile.save(tmp_path / "profile.json")
    assert "host_slowdown" not in (tmp_path / "profile.json").read_text()


def test_what_recomputing_costs_the_host_grows_with_it() -> None:
    model, batch = small()
    profile = autockpt.profile(model, batch, loss=torch.sum)

    def costs(slowdown: float | None) -> HostCosts:
        return profile_index.Index(msgspec.structs.replace(profile, host_slowdown=slowdown)).host

    assert costs(1.0) == costs(None)
    assert costs(3.0) == costs(None).scaled(3.0)
