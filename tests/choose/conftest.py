"""Profiles by hand are of a device whose host has time to spare, so that their candidates cost what their calls do."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.doors import HostCosts, host_costs, profile_index
from tests.hosts import IDLE_HOST


@pytest.fixture(autouse=True, scope="package")
def idle_host() -> Iterator[None]:
    def costs(device: str) -> HostCosts:
        return HostCosts() if device == IDLE_HOST else host_costs(device)

    with patch.object(profile_index, "host_costs", costs):
        yield
