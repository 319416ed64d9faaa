"""Every test in this folder needs the fake device, unless it is marked ``gpu`` and would run on a real one too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_cuda.device import installed
from tests.fake_cuda.plugin import MISSING

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them, before the plugin chooses by what is marked; skip them where the device is not there."""
    reason = config.stash.get(MISSING, "needs the fake CUDA device: make test-device")
    for item in items:
        if HERE not in item.path.parents or item.get_closest_marker("gpu"):
            continue
        item.add_marker(pytest.mark.fake_device)
        if not installed():
            item.add_marker(pytest.mark.skip(reason=reason))
