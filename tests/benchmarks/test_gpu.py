"""benchmarks/gpu: what a failing row, a dying process and a deadline leave behind; the tables; and the whole of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import gpu_tests, profiles
from benchmarks.gpu.archive import archive_name, pack
from benchmarks.gpu.machine import refusal, unseen
from benchmarks.gpu.memory import clean
from benchmarks.gpu.report import differences, tables
from benchmarks.gpu.rows import Figures, Job, NotHere, Sheet, run_jobs
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.summary import summary
from benchmarks.gpu.supervise import supervise
from benchmarks.gpu.users import largest

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def sheet(tmp_path: Path) -> Sheet:
    head = {"stage": 1, "title": "Smoke", "command": "python", "date": "today", "device": "cpu", "seconds": 1.0}
    return Sheet(tmp_path / "stage1.json", {**head, "device_name": "CPU", "environment": {}})


def run(sheet: Sheet, *jobs: Job, seconds: float = 60) -> list[str]:
    """Run jobs; return what the log says."""
    said: list[str] = []
    run_jobs(jobs, sheet, until=time.monotonic() + seconds, clean=lambda: clean(CPU), log=said.append)
    return said


def good() -> Iterator[Figures]:
    yield "predicted", {"peak_bytes": 2 * 2**20, "overhead": 0.1, "verdict": "exact"}
    yield "measured", {"peak_bytes": 3 * 2**20, "overhead": 0.104, "verdict": "exact"}


def fails(error: BaseException) -> Callable[[], Iterator[Figures]]:
    def job() -> Iterator[Figures]:
        yield "predicted", {"peak_bytes": 1}
        raise error

    return job


def outcomes(sheet: Sheet) -> dict[str, str]:
    return {row["name"]: row["outcome"] for row in Sheet.load(sheet.path).rows}


def test_a_stage_that_raises_in_the_middle_leaves_the_rows_before_it_and_says_so(sheet: Sheet) -> None:
    broken = Job(name="broken", run=fails(KeyError("no such call")))
    said = run(sheet, Job(name="before", run=good), broken, Job(name="after", run=good))
    assert outcomes(sheet) == {"before": "done", "broken": "error", "after": "done"}
    before, row, _ = Sheet.load(sheet.path).rows
    assert before["measured"]["peak_bytes"] == 3 * 2**20
    assert (row["predicted"], row["error"]) == ({"peak_bytes": 1}, "KeyError: 'no such call'")
    assert any("Traceback" in line and "no such call" in line for line in said)
    text = tables(sheet.document)
    assert "2 of 3 rows done" in text
    assert "| broken | error | KeyError: 'no such call' |" in text


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
def test_out_of_memory_is_an_outcome_of_its_own(sheet: Sheet, error: Exception) -> None:
    run(sheet, Job(name="large", run=fails(error)), Job(name="next", run=good))
    assert outcomes(sheet) == {"large": "out of memory", "next": "done"}


def test_what_an_out_of_memory_row_held_is_let_go_before_the_next(sheet: Sheet) -> None:
    died: list[str] = []

    class Large:
        def __del__(self) -> None:
            died.append("large")

    def job() -> Iterator[Figures]:
        held = Large()
        yield "predicted", {}
        raise torch.OutOfMemoryError(f"CUDA out of memory with {type(held).__name__}")

    def after() -> Iterator[Figures]:
        assert died == ["large"]
        yield "measured", {}

    run(sheet, Job(name="large", run=job), Job(name="next", run=after))
    assert outcomes(sheet) == {"large": "out of memory", "next": "done"}


def test_what_does_not_apply_here_is_no_error(sheet: Sheet) -> None:
    run(sheet, Job(name="peer", run=fails(NotHere("it is not installed"))))
    assert outcomes(sheet) == {"peer": "not here"}


def test_after_the_deadline_rows_say_that_they_did_not_run(sheet: Sheet) -> None:
    run(sheet, Job(name="late", run=good), seconds=-1)
    assert outcomes(sheet) == {"late": "not run: out of time"}


def test_nothing_is_predicted_once_something_is_measured(sheet: Sheet) -> None:
    def job() -> Iterator[Figures]:
        yield "measured", {"peak_bytes": 3}
        yield "predicted", {"peak_bytes": 3}

    run(sheet, Job(name="sly", run=job))
    (row,) = Sheet.load(sheet.path).rows
    assert "cannot be predicted after" in row["error"]
    assert "predicted" not in row


CHILD = """
import os, sys, time
from pathlib import Path
from benchmarks.gpu.rows import Job, Sheet, run_jobs

def good():
    yield "measured", {"peak_bytes": 1}

def bad():
    yield "predicted", {"peak_bytes": 1}
    BAD

jobs = [Job(name="before", run=good), Job(name="bad", run=bad), Job(name="after", run=good)]
run_jobs(jobs, Sheet.load(Path(sys.argv[1])), until=time.monotonic() + 60, clean=lambda: None, log=lambda line: None)
"""


def supervised(sheet: Sheet, code: str, *, limit_seconds: float) -> dict[str, dict[str, Any]]:
    sheet.save()
    supervise([sys.executable, "-c", code, str(sheet.path)], sheet.path, limit_seconds=limit_seconds)
    return {row["name"]: row for row in Sheet.load(sheet.path).rows}


def test_a_process_that_dies_goes_on_behind_the_row_that_killed_it(
    sheet: Sheet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = supervised(sheet, CHILD.replace("BAD", "os.abort()"), limit_seconds=60)
    assert {name: row["outcome"] for name, row in rows.items()} == {"before": "done", "bad": "error", "after": "done"}
    assert rows["bad"]["error"] == "its process died of SIGABRT"


def test_a_process_that_hangs_is_ended(sheet: Sheet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    sheet.plan([Job(name=name, run=good) for name in ("before", "bad", "after")])
    sheet.rows[0]["outcome"] = "done"
    sheet.rows[1]["outcome"] = "running"
    rows = supervised(sheet, "import time; time.sleep(600)", limit_seconds=0.5)
    assert [row["outcome"] for row in rows.values()] == ["done", "error", "not run: out of time"]
    assert rows["bad"]["error"] == "killed: out of time"


def test_a_process_that_never_begins_says_why(sheet: Sheet) -> None:
    rows = supervised(sheet, "import nothing_of_this_name", limit_seconds=60)
    assert rows["stage"]["error"] == (
        "its process ended with 1; ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )


GROUPS = """
import os, sys, time
from pathlib import Path
from benchmarks.gpu.rows import Job, Sheet, run_jobs

def row():
    yield "measured", {"process": os.getpid(), "conf": os.environ.get("CONF", "")}

jobs = [
    Job(name="a", run=row, process="one"), Job(name="b", run=row, process="one"),
    Job(name="c", run=row, process="two", environment={"CONF": "expandable"}), Job(name="d", run=row, process="three"),
]
sheet, until = Sheet.load(Path(sys.argv[1])), time.monotonic() + 60
run_jobs(jobs, sheet, until=until, clean=lambda: None, log=lambda line: None, alone=True)
"""


def test_each_process_has_the_rows_that_name_it_and_the_variables_they_ask_for(
    sheet: Sheet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = supervised(sheet, GROUPS, limit_seconds=60)
    measured = {name: row["measured"] for name, row in rows.items()}
    assert measured["a"]["process"] == measured["b"]["process"]
    assert len({each["process"] for each in measured.values()}) == 3
    assert {name: each["conf"] for name, each in measured.items()} == {"a": "", "b": "", "c": "expandable", "d": ""}


def test_a_process_that_hangs_leaves_time_to_the_next(sheet: Sheet, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet.plan([Job(name=name, run=good) for name in ("before", "bad", "after")])
    given: list[float] = []
    packed: list[dict[str, str]] = []

    def process(command: Any, log: Path, seconds: float, environment: dict[str, str]) -> str:
        given.append(seconds)
        found = Sheet.load(sheet.path)
        found.rows[0]["outcome"] = "done"
        found.rows[1 if len(given) == 1 else 2]["outcome"] = "running" if len(given) == 1 else "done"
        found.save()
        return "killed: out of time" if len(given) == 1 else ""

    monkeypatch.setattr("benchmarks.gpu.supervise._run", process)
    supervise(
        ["python"], sheet.path, limit_seconds=300, process_seconds=10, after=lambda: packed.append(outcomes(sheet))
    )
    assert given == [10, 10]
    assert outcomes(sheet) == {"before": "done", "bad": "error", "after": "done"}
    assert packed[0] == {"before": "done", "bad": "error", "after": "planned"}  # after each process, however it ended


def test_where_a_vital_row_fails_no_other_begins(sheet: Sheet) -> None:
    run(sheet, Job(name="first", run=fails(LookupError("nothing seen")), vital=True), Job(name="next", run=good))
    assert outcomes(sheet) == {"first": "error", "next": "not run: first was not done"}
    text = summary(sheet.document, sheet.path, ["large.bin (20.0 MiB)"])
    assert "  error    first: LookupError: nothing seen" in text
    assert text.endswith("; not in it: large.bin (20.0 MiB)")


def test_an_archive_has_the_rows_and_what_fits_beside_them(sheet: Sheet, tmp_path: Path) -> None:
    run(sheet, Job(name="gpt2", run=good))
    (tmp_path / "stage1").mkdir()
    for name, size in (("small", 1_000), ("large", 900_000), ("larger", 2_000_000)):
        (tmp_path / "stage1" / name).write_bytes(os.urandom(size))
    to = tmp_path / "back" / archive_name(1, "NVIDIA H100 80GB HBM3")
    assert pack(1, tmp_path, to, limit_bytes=1_000_000) == ["stage1/larger (1.9 MiB)"]
    assert to.name == "stage1-nvidia-h100-80gb-hbm3.tar.gz"
    assert to.stat().st_size < 1_000_000
    with tarfile.open(to) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert names == {"stage1.json", "small", "large"}


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 40, 41, 1000])
@pytest.mark.parametrize("first", [1, 8, 64])
def test_the_largest_batch_is_found_to_a_share(limit: int, first: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    found = largest(fits, first, 32)
    assert found <= limit < found + max(1, found // 32)
    assert min(tried) >= 1
    assert len(tried) == len(set(tried))


def test_a_device_that_recording_sees_nothing_of_is_known_from_what_doctor_tried() -> None:
    tried = [{"device": "cpu", "seen_bytes": 5, "error": ""}, {"device": "cuda:0", "seen_bytes": None, "error": "why"}]
    assert unseen("cuda", {"tried": tried}) == "why"
    assert unseen("cpu", {"tried": tried}) is None
    assert unseen("cuda", {"error": "doctor said nothing"}) is None


def test_where_recording_sees_nothing_only_the_raw_events_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = {**found(), "tried": [{"device": "cpu", "seen_bytes": None, "error": "the allocator reports nothing"}]}
    monkeypatch.setattr(command, "environment", lambda python, patience_seconds: blind)
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--size", "tiny", "--here", "--out", str(tmp_path)])
    monkeypatch.delenv("OUT", raising=False)
    assert command.main() == 3
    document = json.loads((tmp_path / "stage1.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["profiler"]
    assert not (tmp_path / "stage2.json").exists()
    with tarfile.open(tmp_path / "stage1-cpu.tar.gz") as archive:
        assert "stage1-cpu/stage1/trace.json" in archive.getnames()


def test_what_differs_is_listed_with_both_figures(sheet: Sheet) -> None:
    run(sheet, Job(name="gpt2", run=good))
    assert list(differences(sheet.rows)) == [["gpt2", "peak_bytes", "2.000 MiB", "3.000 MiB", "+1,048,576 (+50.000%)"]]
    text = tables(sheet.document)
    assert "3.000 MiB (2.000 MiB)" in text
    assert "10.4% (10.0%)" in text


def found(**changes: Any) -> dict[str, Any]:
    device = {"name": "NVIDIA X", "total_bytes": 100 * 2**30, "free_bytes": 99 * 2**30, "error": ""}
    return {"devices": [device | changes], "problems": [], "settings": {}}


def test_why_nothing_can_be_measured() -> None:
    none = {"devices": [], "problems": [{"what": "cuda", "why": "torch was built without CUDA"}], "settings": {}}
    assert refusal("cpu", none) is None
    assert (refusal("cuda", none) or "").startswith("no CUDA device: torch was built without CUDA; DEVICE=fake-cuda")
    assert refusal("cuda", found()) is None
    assert "3.0 of the 100.0 GiB of NVIDIA X are free" in (refusal("cuda", found(free_bytes=3 * 2**30)) or "")
    assert refusal("cuda", found(error="CUDA error")) == "NVIDIA X does not answer: CUDA error"
    setting = "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"
    why = [{"what": "cuda", "why": f"{setting}: torch then reports no allocations"}]
    hidden = {**found(), "problems": why, "settings": dict([setting.split("=")])}
    assert (refusal("cuda", hidden) or "").startswith(setting)
    blind = {**found(), "problems": [{"what": "cuda", "why": "a tensor did not appear"}]}
    assert refusal("cuda", blind) is None  # the raw events have to show why


def test_a_command_without_a_device_ends_in_a_line(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    command = [sys.executable, "-m", "benchmarks.gpu", "--stage", "1", "--out", str(tmp_path / "out")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Error: no CUDA device: ")
    assert not (tmp_path / "out").exists()


def test_the_stages_keep_their_limits() -> None:
    assert sum(STAGES[number].limit_seconds for number in (1, 2, 3)) <= 20 * 60
    assert max(stage.limit_seconds for stage in STAGES.values()) <= 9 * 60
    assert STAGES[1].limit_seconds <= 4 * 60
    assert all(stage.process_seconds < stage.limit_seconds for stage in STAGES.values())


def test_the_files_with_tests_for_a_gpu_are_found() -> None:
    assert Path("tests/end_to_end/test_gpu.py") in gpu_tests.files()
    assert Path("tests/hazards/test_devices.py") in gpu_tests.files()


def test_a_device_has_a_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA GeForce RTX 4090": "rtx4090", "X": "a100"}
    for name, roofline in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert profiles.roofline_of(torch.device("cuda", 0)) == roofline


@pytest.mark.sweep
def test_every_stage_runs_at_toy_size_on_a_cpu(tmp_path: Path) -> None:
    """It takes under four minutes where nothing else runs; the limit here only ends what hangs."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--size", "tiny", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=480)
    stages = [*STAGES][1:]  # stage 0 is rows of the others, and has a test of its own
    for number in stages:
        document = json.loads((tmp_path / f"stage{number}.json").read_text())
        assert {row["outcome"] for row in document["rows"]} <= {"done", "not here"}, document["rows"]
        assert {"command", "date", "environment", "seconds"} <= set(document)
    report = [sys.executable, "-m", "benchmarks.gpu.report", str(tmp_path)]
    text = subprocess.run(report, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert all(f"## Stage {number}: " in text for number in stages)
