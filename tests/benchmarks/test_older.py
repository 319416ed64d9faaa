"""The frozen profiles are read, and hold what they held."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from benchmarks import older

FROZEN = sorted((Path(__file__).parents[1] / "data" / "profiles").glob("*.json.gz"))


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.name)
def test_a_frozen_profile_is_read_with_its_tensors_seconds_and_refusals(path: Path) -> None:
    old = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    profile = older.read(path)
    assert (profile.plain_seconds, list(profile.tensors.bytes)) == (old["plain_seconds"], old["tensors"]["bytes"])
    assert profile.refused("call") == {i: call["refused"] for i, call in enumerate(old["calls"]) if call.get("refused")}
