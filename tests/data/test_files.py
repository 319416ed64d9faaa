"""Files packed by gzip: read by what they begin with, written by what they are called."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import msgspec
import pytest
from torch import nn

from autockpt import Frontier, InvalidFile, Plan, Profile, apply
from tests.doors import data_files

from ..handmade import chain_profile


def test_what_ends_in_gz_is_packed_and_reads_back(tmp_path: Path) -> None:
    profile, plan = chain_profile(), Plan.of(["h.0"])
    packed, plain = tmp_path / "profile.json.gz", tmp_path / "profile.json"
    profile.save(packed)
    profile.save(plain)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert Profile.load(packed) == Profile.load(plain) == profile
    plan.save(tmp_path / "plan.gz")
    assert Plan.load(tmp_path / "plan.gz") == plan
    renamed = packed.rename(tmp_path / "renamed.json")
    assert Profile.load(renamed) == profile


def test_packing_leaves_no_name_and_no_time(tmp_path: Path) -> None:
    Plan().save(tmp_path / "plan.gz")
    packed = (tmp_path / "plan.gz").read_bytes()
    assert packed[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # magic, deflate, no flags (so no name), time 0


def test_a_file_that_cannot_be_written_is_named_and_not_its_part(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "plan.json"
    with pytest.raises(FileNotFoundError) as caught:
        Plan().save(path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("kind", [Plan, Profile, Frontier])
def test_only_regular_files_are_read_and_no_more_of_them_than_the_bound(tmp_path: Path, kind: type[Plan]) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large.json"
    os.mkfifo(pipe)
    large.touch()
    os.truncate(large, data_files.MAXIMUM_BYTES + 1)
    for path, words in {
        pipe: "pipe is no regular file but a pipe, which might block or never end.*Copy what comes from it to a file",
        Path("/dev/zero"): "^/dev/zero is no regular file but a device",
        large: r"large\.json has 268,435,457 bytes\. At most 268,435,456 are read",
        Path("a\0b.json"): r"'a\\x00b\.json' can be no path of a file: it has a null character",
    }.items():
        with pytest.raises(InvalidFile, match=words):
            kind.load(path)
        with pytest.raises(InvalidFile, match=words):
            kind.load(str(path))
    with pytest.raises(IsADirectoryError):
        kind.load(tmp_path)


def test_a_plan_that_is_applied_from_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(InvalidFile, match="is no regular file but a pipe"):
        apply(nn.Linear(2, 2), plan=tmp_path / "plan.json")


def test_a_path_with_a_null_character_is_refused_in_writing_too() -> None:
    with pytest.raises(InvalidFile, match="a null character"):
        Plan().save("a\0b.json")


@pytest.mark.parametrize("keep", [2, 12, -4])
def test_a_damaged_file_says_so(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "profile.json.gz"
    path.write_bytes(gzip.compress(data_files.encode(chain_profile()))[:keep])
    with pytest.raises(InvalidFile, match=r"profile\.json\.gz is packed by gzip and damaged"):
        Profile.load(path)


def test_what_unpacks_to_far_too_much_is_refused_without_unpacking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    monkeypatch.setattr(data_files, "MAXIMUM_BYTES", 10**6)
    with pytest.raises(InvalidFile, match="is not a valid"):  # just small enough, and no JSON
        Profile.load(path)
    monkeypatch.setattr(data_files, "MAXIMUM_BYTES", 10**6 - 1)
    asked: list[int] = []

    class Watched(gzip.GzipFile):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    monkeypatch.setattr(gzip, "GzipFile", Watched)
    with pytest.raises(InvalidFile, match=r"unpacks to more than 999,999 bytes.*save"):
        Profile.load(path)
    assert asked == [10**6]


PLAN = b'{"schema": "autockpt.plan/1", "model": "M", "segments": [{"calls": ["0#0"]}]}'


@pytest.mark.parametrize(
    "damaged",
    [
        PLAN.replace(b'"M"', b'"M\xe0"'),
        PLAN.replace(b'"model"', b'"mod\xe0l"'),
        PLAN[:-1] + b', "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=["a value", "a key", "lists in lists"],
)
def test_damaged_bytes_are_an_invalid_file(damaged: bytes) -> None:
    """They ended in the decoder's own errors, and in a traceback on the command line."""
    with pytest.raises(InvalidFile, match=r"plan\.json is not a valid autockpt\.plan/1 file"):
        data_files.decode(damaged, Plan, source="plan.json")


def test_a_profile_without_a_column_or_of_no_tree_is_an_invalid_file() -> None:
    """The first raised an IndexError; the second was read, and whoever explained it ran into one."""
    profile = msgspec.json.decode(data_files.encode(Profile.load("resnet-50")))
    short = profile | {"ops": profile["ops"] | {"function": profile["ops"]["function"][:-1]}}
    calls = [dict(call) for call in profile["calls"]]
    inner = next(i for i, call in enumerate(calls) if call["parent"] > 0)
    calls[inner]["parent"] = 0
    for damaged in (short, profile | {"calls": calls}):
        with pytest.raises(InvalidFile):
            data_files.decode(msgspec.json.encode(damaged), Profile, source="profile.json")


def test_a_segment_without_calls_is_no_plan() -> None:
    """It was taken, and `apply` raised an IndexError."""
    with pytest.raises(InvalidFile, match="no calls"):
        Plan.of([[]])
