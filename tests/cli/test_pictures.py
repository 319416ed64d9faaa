"""`--plot`: what is written, and what is refused before the work begins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autockpt import Plan, frontier
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


def test_pictures_of_plans_and_frontiers(run: Run, profile_file: Path, plan_file: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "picture.txt"], ".png, .svg, .pdf"),
        (["--plot", "missing/picture.png"], "missing/picture.png"),
        (["--plot", "picture.png"], "give the profile of that step: --profile"),
    ],
    ids=["suffix", "folder", "no profile"],
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
