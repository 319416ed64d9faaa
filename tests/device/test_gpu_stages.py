"""Every stage of `make gpu`, on the fake device at toy size: it runs to its end, and leaves an archive that says where.

Figures are looked at nowhere: none of them is a GPU's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.stages import STAGES

pytestmark = pytest.mark.sweep  # all together take a minute of both cores

ROOT = Path(__file__).parents[2]
NAME = "Fake CUDA device"

MAY_LACK = ("attention: ", "gpt2-large: torch_remat")
"""Rows about kernels and a package that are not here."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all stages, in two processes at once; return the folder. What they print is beside it."""
    folder = tmp_path_factory.mktemp("gpu")
    environment = {**os.environ, "OUT": str(folder / "back"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--device",
        "fake-cuda",
        "--size",
        "tiny",
        "--here",
        "--minutes",
        "60",
    ]
    running = []
    for part in ((0, 1, 2, 7), (3, 4, 5, 6)):
        stages = [option for number in part for option in ("--stage", str(number))]
        where = ["--out", str(folder), *stages]
        with (folder / f"said{part[0]}.txt").open("w") as said:
            running.append(
                subprocess.Popen([*command, *where], cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT)
            )
    for each in running:
        assert each.wait(timeout=1800) == 0, "\n".join(path.read_text() for path in folder.glob("said*.txt"))
    return folder


def packed(out: Path, number: int) -> dict[str, Any]:
    """Read a stage's rows from its archive."""
    (archive,) = (out / "back").glob(f"stage{number}-*.tar.gz")
    assert archive.name == f"stage{number}-fake-cuda-device.tar.gz"
    assert archive.stat().st_size < 16 * 2**20
    with tarfile.open(archive) as opened:
        file = opened.extractfile(f"stage{number}-fake-cuda-device/stage{number}.json")
        assert file is not None
        found: dict[str, Any] = json.loads(file.read())
    return found


@pytest.mark.parametrize("number", STAGES)
def test_a_stage_runs_to_its_end_and_packs_its_rows(out: Path, number: int) -> None:
    document = packed(out, number)
    assert document["rows"]
    assert [(row["name"], row.get("error")) for row in document["rows"] if not ended(row)] == []
    assert all("available_bytes" in row["footprint"] for row in document["rows"])


def ended(row: dict[str, Any]) -> bool:
    outcome: str = row["outcome"]
    name: str = row["name"]
    return outcome == "done" or (outcome == "not here" and name.startswith(MAY_LACK))


@pytest.mark.parametrize("number", STAGES)
def test_nothing_passes_as_a_result_of_a_gpu(out: Path, number: int) -> None:
    assert packed(out, number)["device_name"] == NAME
    with tarfile.open(out / "back" / f"stage{number}-fake-cuda-device.tar.gz") as opened:
        file = opened.extractfile(f"stage{number}-fake-cuda-device/stage{number}.md")
        assert file is not None
        assert f"{NAME} (no GPU: nothing here is a result of one)" in file.read().decode()
    (said,) = (text for path in out.glob("said*.txt") if f"stage {number}, " in (text := path.read_text()))
    (line,) = (each for each in said.splitlines() if each.startswith(f"stage {number}, ") and "rows done" in each)
    assert f"on {NAME} (no GPU" in line


def test_the_first_ten_minutes_answer_what_is_most_in_doubt_first(out: Path) -> None:
    """And foretell each row before anything of it is measured."""
    rows = packed(out, 0)["rows"]
    names = [row["name"].removesuffix(", at the peak of torch, every block") for row in rows]
    assert names[:2] == ["where time goes: llama-1b", "where time goes: llama-100m"]
    assert names[3:5] == ["llama-3b, foreach AdamW", "llama-3b, fused AdamW"] and names[-1] == "moves: llama-1b"
    assert all(row["predicted_at"] <= row["measured_at"] for row in rows)
    copies = [rows[number]["predicted"]["optimizer_step_bytes"] for number in (3, 4)]
    assert copies[0] > copies[1] == 0
    assert all(row["predicted"]["host's seconds"] == "measured" for row in rows[:-1])


def test_only_archives_are_sent_back_and_few_of_them(out: Path) -> None:
    assert len(list((out / "back").iterdir())) == len(STAGES) <= 8


def test_the_summary_is_the_last_that_is_said_and_short_enough_to_be_seen(out: Path) -> None:
    for path in out.glob("said*.txt"):
        summary = path.read_text().rpartition("\n\nstage ")[2]
        assert summary.splitlines()[-1].split(" (")[0].endswith(".tar.gz")
        assert len(summary) < 6000


def test_the_main_road_has_its_log_and_a_plan_that_was_made_on_the_way(out: Path) -> None:
    rows = {row["name"]: row for row in packed(out, 1)["rows"]}
    assert list(rows)[:2] == ["profiler", "gpt2-small: main road"]
    measured = rows["gpt2-small: main road"]["measured"]
    assert any("planned in" in line for line in measured["log"])
    assert measured["same bits"] is True
    assert measured["segments"] > 0
    assert rows["gpt2-small: main road"]["predicted"]["segments"] == measured["segments"]
