"""`--plot` and `--trace`: what is written, and what is refused before the work begins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autockpt import Plan, Profile, frontier
from tests.cli.shell import Run, imports_torch
from tests.handmade import chain_profile

BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    Plan.of(["h.0"]).save(path)
    return path


@pytest.mark.parametrize("suffix", BEGINS)
def test_a_picture_in_each_format(run: Run, profile_file: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"picture{suffix}"
    plain = run("explain", profile_file)
    result = run("explain", profile_file, "--plot", picture)
    assert (result.status, result.out, result.err) == (0, plain.out, f"wrote {picture}\n")
    assert picture.read_bytes().startswith(BEGINS[suffix])


def test_pictures_and_traces_of_plans_and_frontiers(
    run: Run, profile_file: Path, plan_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    frontier_file = tmp_path / "frontier.json"
    frontier(chain_profile(), points=3).save(frontier_file)
    for i, arguments in enumerate(
        [
            ["explain", plan_file, "--profile", profile_file],
            ["explain", profile_file, "--budget", "80MiB"],
            ["explain", frontier_file],
            ["frontier", profile_file, "--points", 3],
        ]
    ):
        picture = tmp_path / f"{i}.png"
        result = run(*arguments, "--plot", picture)
        assert (result.status, result.err) == (0, f"wrote {picture}\n")
        assert picture.read_bytes().startswith(b"\x89PNG")
    trace = tmp_path / "trace.json"
    assert run("explain", plan_file, "--profile", profile_file, "--trace", trace, "--json").status == 0
    assert [event["name"] for event in json.loads(trace.read_bytes())["traceEvents"] if event.get("cat") == "replay"]
    assert run("explain", profile_file, "--trace", trace).status == 0
    Profile.load(profile_file).trace(tmp_path / "same.json")
    assert trace.read_bytes() == (tmp_path / "same.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "picture.txt"], ".png, .svg, .pdf"),
        (["--plot", "missing/picture.png"], "missing/picture.png"),
        (["--trace", "missing/trace.json"], "missing/trace.json"),
        (["--plot", "picture.png"], "give the profile of that step: --profile"),
        (["--trace", "trace.json"], "give the profile of that step: --profile"),
    ],
    ids=["suffix", "folder", "folder of a trace", "no profile", "no profile for a trace"],
)
def test_misused(
    run: Run, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    result = run("explain", plan_file, *arguments)
    assert (result.status, result.out) == (2, "")
    assert words in result.err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_matplotlib_is_missed_before_the_work_begins(
    run: Run, profile_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("frontier", profile_file, "--plot", profile_file.with_name("picture.png"))
    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert 'pip install "autockpt[plot]"' in result.err


def test_it_imports_no_torch(profile_file: Path) -> None:
    pytest.importorskip("matplotlib")
    assert not imports_torch(["explain", str(profile_file), "--plot", str(profile_file.with_name("picture.png"))])
