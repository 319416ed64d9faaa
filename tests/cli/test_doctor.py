"""`autockpt doctor`: what it finds here, and what it says of machines that are not here."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import msgspec
import pytest

from tests.cli.shell import Run
from tests.doors import (
    TRIED_BYTES,
    DoctorDevice,
    DoctorProblem,
    DoctorReport,
    Tried,
    doctor_lines,
    doctor_problems,
    examine,
    record_room,
)

GIB = 2**30
GPU = DoctorDevice(name="NVIDIA X", capability="9.0", total_bytes=100 * GIB, free_bytes=99 * GIB)


def found(**changes: Any) -> DoctorReport:
    """A machine with a device on which nothing is wrong."""
    report = DoctorReport(
        autockpt="0.1.0",
        python="3.12.3",
        system="Linux 6, x86_64",
        cores=8,
        memory_bytes=64 * GIB,
        torch="2.11.0+cu130",
        cuda="13.0",
        driver="580.1",
        devices=(GPU,),
        allocator="native",
        settings={},
        libraries={"numpy": "2", "highspy": "1"},
        tried=tuple(Tried(device=each, asked_bytes=1, seen_bytes=1) for each in ("cpu", "cuda:0")),
    )
    changed: DoctorReport = msgspec.structs.replace(report, **changes)
    return msgspec.structs.replace(changed, problems=tuple(doctor_problems(changed)))


def why(report: DoctorReport) -> dict[str, str]:
    return {problem.what: problem.why for problem in report.problems}


def test_the_doctor_finds_this_machine(run: Run) -> None:
    result = run("doctor")
    assert result.status == 0
    assert f"recording on cpu: allocations are seen: {TRIED_BYTES:,} bytes" in result.out
    report = msgspec.json.decode(run("doctor", "--json").out, type=DoctorReport)
    assert report.tried[0] == Tried(device="cpu", asked_bytes=TRIED_BYTES, seen_bytes=TRIED_BYTES)


def test_where_all_is_well_nothing_is_refused() -> None:
    assert found().problems == ()
    assert "refused: nothing that can be seen from here" in [*doctor_lines(found())]


def test_no_device_and_no_cuda_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "built without CUDA" in why(found(cuda=None, devices=()))["cuda"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert why(found(driver=None, devices=()))["cuda"] == (
        "torch sees no device; it was built for CUDA 13.0, no driver is found, and CUDA_VISIBLE_DEVICES is ''"
    )


def test_a_filled_device_says_how_much_is_free() -> None:
    report = found(devices=(msgspec.structs.replace(GPU, free_bytes=3 * GIB),))
    assert report.problems == (
        DoctorProblem(kind="note", what="device 0", why="3.0 of 100.0 GiB are free: others hold the rest"),
    )
    broken = found(devices=(msgspec.structs.replace(GPU, free_bytes=None, error="RuntimeError: CUDA error"),))
    assert why(broken)["cuda"] == "device 0 does not answer: RuntimeError: CUDA error"


@pytest.mark.parametrize(
    ("name", "value", "hides"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", True),
        ("PYTORCH_ALLOC_CONF", "garbage_collection_threshold:0.8,backend: cudaMallocAsync", True),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:native,expandable_segments:True", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", False),
    ],
)
def test_a_setting_that_hides_events_is_named(name: str, value: str, hides: bool) -> None:
    unseen = (Tried(device="cuda:0", asked_bytes=8, seen_bytes=None),)
    said = why(found(settings={name: value}, tried=unseen))["cuda"]
    assert (f"{name}={value}" in said) == hides


def test_what_a_recording_raises_is_the_reason(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("the profiler lost events\nand more")

    monkeypatch.setattr(record_room, "profile", fails)
    result = run("doctor")
    assert result.status == 1
    assert "refused: cpu: RuntimeError: the profiler lost events\n" in result.out
    assert result.err == "Error: recording on cpu sees no allocations\n"


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run("doctor", "--json")
    assert (result.status, json.loads(result.out)["torch"]) == (1, None)
    assert "torch: not installed" in [*doctor_lines(examine())]
