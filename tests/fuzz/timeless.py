"""Recording without times: they would take most of a run, and make it another one on each machine."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

from tests.doors import HostCosts, device_clock, profile_index, timing

__all__ = ["without_times"]

HOST = HostCosts(replay_seconds=1e-5, member_seconds=1e-6, save_seconds=1e-6, kept_seconds=1e-6, mode_seconds=1e-6)


@contextlib.contextmanager
def without_times() -> Iterator[None]:
    """Let every profile that is recorded inside the block have made-up times: a look at the clock is a microsecond."""
    looks = itertools.count()
    leisurely = SimpleNamespace(perf_counter=lambda: next(looks) * 1e-6, thread_time=lambda: next(looks) * 1e-6)
    with (
        mock.patch.object(device_clock, "time", leisurely),
        mock.patch.object(profile_index, "first_costs", lambda profile: HOST),
        mock.patch.object(timing, "REPEATS", 1),
    ):
        yield
