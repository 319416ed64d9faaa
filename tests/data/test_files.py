"""Files packed by gzip: read by what they begin with, written by what they are called."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from autockpt import Frontier, InvalidFile, Plan, Profile
from autockpt._data import files

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


def test_packing_leaves_no_name_and_no_time() -> None:
    packed = files.pack(b"text")
    assert packed[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # magic, deflate, no flags (so no name), time 0
    assert files.unpack(packed, source="here") == b"text"


def test_a_file_that_cannot_be_written_is_named_and_not_its_part(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "plan.json"
    with pytest.raises(FileNotFoundError) as caught:
        Plan().save(path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("keep", [2, 12, -4])
def test_a_damaged_file_says_so(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "profile.json.gz"
    path.write_bytes(files.pack(files.encode(chain_profile()))[:keep])
    with pytest.raises(InvalidFile, match=r"profile\.json\.gz is packed by gzip and damaged"):
        Profile.load(path)


def test_what_unpacks_to_far_too_much_is_refused_without_unpacking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    monkeypatch.setattr(files, "MAXIMUM_UNPACKED_BYTES", 10**6)
    with pytest.raises(InvalidFile, match="is not a valid"):  # just small enough, and no JSON
        Profile.load(path)
    monkeypatch.setattr(files, "MAXIMUM_UNPACKED_BYTES", 10**6 - 1)
    asked: list[int] = []

    class Watched(gzip.GzipFile):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    monkeypatch.setattr(gzip, "GzipFile", Watched)
    with pytest.raises(InvalidFile, match=r"more than 999,999 bytes.*gunzip"):
        Profile.load(path)
    assert asked == [10**6]


def test_a_plan_with_remade_units_is_read_and_runs_those_calls_again() -> None:
    remade = {
        "calls": ["h.0#0"],
        "keep": ["h.0.drop#0"],
        "skip": ["h.0.up#0"],
        "remake": ["h.0.drop#0"],
        "kept_bytes": 8,
    }
    other = {"calls": ["h.1#0"], "keep": ["h.1.up#0"], "remake": []}
    plan = {"schema": "autockpt.plan/1", "segments": [remade, other], "notes": ["one"]}
    read = files.decode(msgspec.json.encode(plan), Plan, source="plan.json")
    assert [(segment.calls, segment.keep, segment.skip) for segment in read.segments] == [
        (("h.0#0",), (), ()),
        (("h.1#0",), ("h.1.up#0",), ()),
    ]
    assert read.notes[0] == "one"
    assert read.notes[1].startswith("units in h.0#0 were remade by an earlier version")
    plans = [{"peak_bytes": 9, "plain_peak_bytes": 9}, plan | {"plain_peak_bytes": 9, "recompute_seconds": 1.0}]
    frontier = {"schema": "autockpt.frontier/1", "solver": "auto", "plans": plans}
    assert files.decode(msgspec.json.encode(frontier), Frontier, source="f.json").plans[1].segments == read.segments


@pytest.mark.parametrize("segments", [3, [3], [{"remake": ["a#0"]}], [{"calls": 3, "remake": ["a#0"]}], {"remake": 1}])
def test_a_damaged_plan_with_remade_units_is_refused(segments: object) -> None:
    plan = {"schema": "autockpt.plan/1", "segments": segments, "model": "remake", "notes": 3, "remake": 1}
    text = msgspec.json.encode(plan)
    assert b'"remake"' in text
    with pytest.raises(InvalidFile, match="not a valid"):
        files.decode(text, Plan, source="plan.json")


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
        files.decode(damaged, Plan, source="plan.json")


def test_a_profile_without_a_column_or_of_no_tree_is_an_invalid_file() -> None:
    """The first raised an IndexError; the second was read, and whoever explained it ran into one."""
    frozen = Path(__file__).parent / "profiles" / "resnet-50.json.gz"
    profile = msgspec.json.decode(files.unpack(frozen.read_bytes(), source=frozen.name))
    short = profile | {"ops": profile["ops"] | {"function": profile["ops"]["function"][:-1]}}
    calls = [dict(call) for call in profile["calls"]]
    inner = next(i for i, call in enumerate(calls) if call["parent"] > 0)
    calls[inner]["parent"] = 0
    for damaged in (short, profile | {"calls": calls}):
        with pytest.raises(InvalidFile):
            files.decode(msgspec.json.encode(damaged), Profile, source="profile.json")


def test_a_segment_without_calls_is_no_plan() -> None:
    """It was taken, and `apply` raised an IndexError."""
    with pytest.raises(InvalidFile, match="no calls"):
        Plan.of([[]])
