"""Hosts on which recomputing costs what a test says."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest.mock import patch

from tests.doors import IDLE_HOST, HostCosts, profile_index

__all__ = ["IDLE_HOST", "host"]


def host(**seconds: float) -> AbstractContextManager[object]:
    """Return a context in which candidates are charged these seconds of the host (`HostCosts`), and no others."""
    costs = HostCosts(**seconds)
    return patch.object(profile_index, "first_costs", lambda profile: costs)
