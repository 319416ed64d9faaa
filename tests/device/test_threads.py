"""What several threads of autograd use of the device."""

from __future__ import annotations

import re

from tests.fake_cuda.build import SOURCES

DESTROYED = re.compile(
    r"^(?:inline|static) (?!thread_local)(?:std::(?!atomic)\S*[^\s&]|[A-Z]\w+) \w+(?:\[\w+\])*(?:;| =|{)", re.M
)
"""Objects of the whole process, held by value. Numbers, and what belongs to a thread, need no destructor."""


def test_nothing_that_threads_share_is_destroyed_as_the_process_ends() -> None:
    """Autograd's threads may end later, and gave back their workspaces to lists that were gone: "corrupted size"."""
    found = {path.name: DESTROYED.findall(path.read_text()) for path in SOURCES.iterdir()}
    assert len(found) > 10 and not any(found.values()), found
