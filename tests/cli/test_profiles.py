"""`autockpt profiles`, and recorded profiles by name wherever a profile file may be given."""

from __future__ import annotations

import gzip
import json
from importlib import resources
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from autockpt import Profile
from tests.cli.shell import Run, imports_torch
from tests.doors import cli_main, recorded_page, shipped_names
from tests.handmade import chain_profile

SMALL = "resnet-50"


def test_the_command_lists_them(run: Run) -> None:
    result = run("profiles")
    assert (result.status, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines() if "  " in line][1:] == shipped_names()
    assert "46.97 GiB" in result.out
    assert "peaks and seconds are predicted" in result.out


def test_json_is_one_document(run: Run) -> None:
    result = run("profiles", "--json")
    assert (result.status, result.err) == (0, "")
    document = json.loads(result.out)
    assert document["kind"] == "profiles"
    assert [each["name"] for each in document["profiles"]] == shipped_names()
    assert {each["mode"] for each in document["profiles"]} == {"fake"}


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120, 160])
def test_it_fits_the_width(width: int) -> None:
    text = recorded_page({name: Profile.load(name) for name in shipped_names()}).text(width)
    assert max(map(len, text.splitlines())) <= width
    assert all(f"\n{name} " in text for name in shipped_names())


def test_a_name_stands_for_the_file(run: Run, profile_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("explain", SMALL, "-v").out == Profile.load(SMALL).explain()
    plan = profile_file.with_name("plan.json")
    chain_profile().save(profile_file.with_name("chain.json.gz"))
    monkeypatch.setattr(resources, "files", lambda package: profile_file.parent)
    assert "chain " in run("profiles").out
    budget = ("--budget", "80MiB", "-v")
    for command in (["solve", *budget], ["frontier", "--points", "3", "-v"], ["explain", *budget]):
        assert run(*command, "chain") == run(*command, profile_file)
    run("solve", "chain", "--budget", "80MiB", "-o", plan)
    assert run("explain", plan, "--profile", "chain", "-v") == run("explain", plan, "--profile", profile_file, "-v")


def test_a_file_of_that_name_wins(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chain_profile().save(SMALL)
    assert "Chain" in run("explain", SMALL).out


def test_packed_files_are_read_from_stdin_too(run: Run, profile_file: Path) -> None:
    packed = gzip.compress(profile_file.read_bytes())
    assert run("explain", "-", "-v", stdin=packed) == run("explain", profile_file, "-v")


@pytest.mark.parametrize("command", [["solve", "--budget", "1GiB"], ["frontier"], ["explain"]], ids=lambda c: c[0])
def test_an_unknown_name_is_misuse(run: Run, command: list[str]) -> None:
    result = run(*command, "resnet50")
    assert (result.status, result.out) == (2, "")
    assert "is called 'resnet50'; the nearest name" in result.err.splitlines()[-1]


def test_a_missing_file_is_not_taken_for_a_name(run: Run) -> None:
    result = run("solve", "missing.json", "--budget", "1GiB")
    assert result.status == 2
    assert "nearest" not in result.err


@pytest.mark.parametrize("words", [["solve"], ["frontier"], ["explain"], ["explain", "plan.json", "--profile"]])
def test_shells_complete_names_and_files(words: list[str]) -> None:
    shell = ShellComplete(cli_main, {}, "autockpt", "_AUTOCKPT_COMPLETE")
    found = shell.get_completions(words, "resnet")
    assert [item.value for item in found if item.type == "plain"] == ["resnet-152", "resnet-50"]
    assert [item.type for item in found if item.type != "plain"] == ["file"]


def test_it_imports_no_torch() -> None:
    assert not imports_torch(["profiles"])
    assert not imports_torch(["explain", SMALL])
