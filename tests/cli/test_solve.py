"""`autockpt solve` and `explain`: what they print, where, and with which exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from autockpt import Plan, Profile
from autockpt.solvers import format_bytes
from tests.cli.shell import Run, imports_torch

MIB = 2**20


def test_solve_prints_the_plan(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "80MiB", "-v")
    assert result.status == 0
    assert result.err == ""
    assert result.out.startswith("Plan for Chain, by ")
    assert "predicted peak" in result.out


def test_solve_json_is_the_plan_and_nothing_else(run: Run, profile_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    result = run("solve", profile_file, "--budget", "80MiB", "--json", "-o", output)
    assert result.status == 0
    assert result.err == f"wrote {output}\n"
    assert result.out == output.read_text()
    plan = Plan.load(output)
    assert 0 < plan.peak_bytes <= 80 * MIB == plan.budget_bytes
    assert plan.segments
    assert all(call != "h.1.attn#0" for segment in plan.segments for call in segment.calls)


def test_pins_may_be_given_several_times(run: Run, profile_file: Path, tmp_path: Path) -> None:
    pins = ("--keep", "h.0", "--keep", "*.3.attn", "--recompute", "h.2.*")
    result = run("solve", profile_file, "--budget", "80MiB", *pins, "-o", tmp_path / "plan.json", "-v")
    assert result.status == 0
    assert "Pinned: keep [h.0, *.3.attn]; recompute [h.2.*]" in result.out
    plan = Plan.load(tmp_path / "plan.json")
    assert (plan.pinned_keep, plan.pinned_recompute) == (("h.0", "*.3.attn"), ("h.2.*",))


def test_a_pin_that_matches_nothing_is_misuse(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "80MiB", "--keep", "h.0.attm")
    assert result.status == 2
    assert "'h.0.attm'; the nearest names are" in result.err
    assert result.out == ""


def test_where_pins_leave_no_plan_both_minima_are_told(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "60MiB", "--keep", "*.mlp", "--json")
    assert result.status == 1
    document = json.loads(result.out)
    assert document["unpinned_minimum_bytes"] < document["minimum_bytes"]
    assert f"{format_bytes(document['unpinned_minimum_bytes'])} without" in result.err
    plan = msgspec.convert(document["plan"], Plan)
    assert plan.peak_bytes == document["minimum_bytes"]
    assert plan.pinned_keep == ("*.mlp",)
    assert all("mlp" not in call and call.count(".") == 2 for each in plan.segments for call in each.calls)


def test_profile_and_plan_can_come_from_stdin(run: Run, profile_file: Path) -> None:
    plan = run("solve", "-", "--budget", "80MiB", "--json", stdin=profile_file.read_bytes())
    assert plan.status == 0
    explained = run("explain", "-", "--profile", profile_file, "-v", stdin=plan.out.encode())
    assert explained.status == 0
    assert explained.out == run("solve", profile_file, "--budget", "80MiB", "-v").out


def test_solve_infeasible(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "6MiB", "--json")
    assert result.status == 1
    assert result.err.startswith("Error: budget 6MiB: the lowest peak that can be reached is ")
    assert result.err.count("\n") <= 6
    document = json.loads(result.out)
    parts = document["parts"]
    assert sum(size for name, size in parts.items() if name.endswith("_bytes")) == document["minimum_bytes"]
    assert (parts["phase"], parts["parameter_bytes"], parts["segment"]) == ("backward", 4 * MIB, "h.1#0")
    assert document["advice"] and all(line in result.err for line in document["advice"][1:3])
    assert document["status"] == "infeasible"
    assert document["minimum_bytes"] > document["budget_bytes"] == 6 * MIB
    plan = msgspec.convert(document["plan"], Plan)
    assert plan.segments and plan.peak_bytes == plan.budget_bytes == document["minimum_bytes"]
    assert run("solve", profile_file, "--budget", document["minimum_bytes"]).status == 0


def test_solve_infeasible_for_people(run: Run, profile_file: Path) -> None:
    brief = run("solve", profile_file, "--budget", "6MiB")
    assert (brief.status, brief.out) == (1, "")
    assert 3 <= brief.err.count("\n") <= 6 and max(map(len, brief.err.splitlines())) < 130
    result = run("solve", profile_file, "--budget", "6MiB", "-v")
    assert (result.status, result.err) == (1, brief.err)
    assert "It stands at: backward of h.1.mlp#0; most of what is restored belongs to h.1#0" in result.out
    rows = {line.split("  ")[0]: line.split()[-1] for line in result.out.splitlines() if line.endswith("%")}
    assert rows["restored by replays"] == "70%"
    assert sum(int(share.rstrip("%")) for share in rows.values()) == pytest.approx(100, abs=len(rows))


def test_solve_for_the_minimum_and_within_an_overhead(run: Run, profile_file: Path, tmp_path: Path) -> None:
    assert run("solve", profile_file, "--budget", "lowest", "-o", tmp_path / "lowest.json").status == 0
    assert run("solve", profile_file, "--budget", "1", "--json").status == 1
    lowest = Plan.load(tmp_path / "lowest.json")
    assert lowest.peak_bytes == json.loads(run("solve", profile_file, "--budget", "1", "--json").out)["minimum_bytes"]
    within = run("solve", profile_file, "--max-overhead", "0.05", "-o", tmp_path / "within.json", "-v")
    assert "5.0%  the lowest peak within a recompute overhead of 0.05" in within.out
    plan = Plan.load(tmp_path / "within.json")
    assert plan.recompute_overhead <= 0.05
    assert lowest.peak_bytes < plan.peak_bytes < plan.plain_peak_bytes
    assert run("explain", profile_file, "--max-overhead", "0.05", "-v").out == within.out


def test_solve_too_costly(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--max-overhead", "0.01", "--solver", "all", "--json")
    assert (result.status, result.err.count("\n")) == (1, 1)
    document = json.loads(result.out)
    assert document["status"] == "too costly"
    assert document["max_overhead"] == 0.01 < document["least_overhead"]
    assert msgspec.convert(document["plan"], Plan).recompute_overhead == document["least_overhead"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "8 G B"], "8 G B"),
        (["--budget=-1"], "-1"),
        (["--budget", "120%"], "120%"),
        (["--budget", "80MiB", "--solver", "best"], "is not one of 'all', "),
        (["--budget", "80MiB", "--solver", "block:-1"], "give a whole number from 1 to 999999: 'block:4'"),
        (["--budget", "80MiB", "--recompute", "*.mlp/gelu"], "no torch function of the step matches '*.mlp/gelu'"),
        (["--budget", "80MiB", "--seconds", "0"], "--seconds"),
        (["--budget", "80MiB", "-o", "missing/plan.json"], "missing/plan.json"),
        (["--budget", "least"], 'budget="min" asks for the lowest peak'),
        (["--budget", "80%"], "a device whose memory is known"),
        (["--max-overhead", "0"], "a finite ratio above 0"),
        (["--max-overhead", "nan"], "nan is none"),
        (["--max-overhead", "15%"], "--max-overhead"),
        (["--budget", "80MiB", "--max-overhead", "0.1"], "at most one of --budget and --max-overhead"),
        ([], "either --budget or --max-overhead"),
    ],
)
def test_solve_misused(run: Run, profile_file: Path, arguments: list[str], words: str) -> None:
    result = run("solve", profile_file, *arguments)
    assert result.status == 2
    assert result.out == ""
    assert words in result.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "not a valid"),
        (b'{"schema": "autockpt.profile/2", "model": ', "not a valid"),
        (b'{"schema": "autockpt.profile/9"}', "autockpt.profile/9"),
        (b'{"schema": "autockpt.plan/1", "surprise": 1}', "surprise"),
        (b"\xff\xfe", "not a valid"),
    ],
    ids=["empty", "truncated", "other schema", "unknown field", "not text"],
)
@pytest.mark.parametrize("command", [["explain"], ["solve", "--budget", "1GiB"]], ids=["explain", "solve"])
def test_files_that_are_not_valid(run: Run, tmp_path: Path, command: list[str], contents: bytes, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(contents)
    result = run(*command, path)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith(f"Error: {path}")
    assert result.err.count("\n") == 1
    assert words in result.err or command[0] == "solve"


def test_a_file_that_is_missing(run: Run) -> None:
    result = run("explain", "missing.json")
    assert result.status == 2
    assert "missing.json" in result.err


def test_explain_a_profile(run: Run, profile_file: Path) -> None:
    text = run("explain", profile_file, "-v")
    assert text.status == 0
    assert text.out == Profile.load(profile_file).explain()
    assert "h.0 … h.3" in text.out
    document = json.loads(run("explain", profile_file, "--json").out)
    assert document["kind"] == "profile"
    assert document["activation_bytes"] == 4 * (8 + 16 + 2 + 2) * MIB
    assert [row["calls"] for row in document["modules"]] == [1, 4, 4, 4]


def test_explain_a_profile_for_a_budget(run: Run, profile_file: Path) -> None:
    asked = (profile_file, "--budget", "80MiB")
    assert run("explain", *asked).out.splitlines()[:2] == run("solve", *asked).out.splitlines()[:2]
    assert run("explain", *asked, "-v").out == run("solve", *asked, "-v").out
    document = json.loads(run("explain", profile_file, "--budget", "80MiB", "--json").out)
    assert document["kind"] == "plan"
    assert document["predicted_peak_bytes"] <= 80 * MIB


def test_explain_shows_memory_over_time_on_its_first_screen(run: Run, tmp_path: Path) -> None:
    """`-v` had the only chart, and for a profile none at all, though its last line said so."""
    drawn = run("explain", "gpt2-xl", "--budget", "24GB").out
    lines = drawn.splitlines()
    assert lines[3] == "Predicted memory over the step" and len(lines) <= 15
    assert "├forward──" in drawn and "↑ peak, backward of the whole model" in drawn and "GiB" not in drawn
    assert any(re.match(r"Recomputed: .*48 blocks of h \(\d+ whole, \d+ in part\)", line) for line in lines)
    assert "Predicted memory over the step" in run("explain", "gpt2-xl", "-v").out
    Plan.of(["transformer.h.0", "transformer.h.1"]).save(tmp_path / "made.json")
    by_hand = run("explain", tmp_path / "made.json", "--profile", "gpt2-xl").out
    assert by_hand.startswith("By hand: peak 45.6") and "% slower" in by_hand.splitlines()[0]


def test_explain_names_the_modules_that_save_most(run: Run) -> None:
    """It named the first four of the tree, and left out the half that the activations of the MLP are."""
    rows = [line.split()[0] for line in run("explain", "gpt2-xl").out.splitlines()[7:12]]
    assert rows == ["transformer", "h.0", "attn", "mlp", "act"]


def test_explain_shows_the_memory_of_a_plan_whose_profile_is_given(
    run: Run, profile_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    run("solve", profile_file, "--budget", "60MiB", "-o", path)
    assert "Predicted memory" not in run("explain", path, "-v").out
    assert "Predicted memory over the step" in run("explain", path, "--profile", profile_file, "-v").out
    document = json.loads(run("explain", path, "--profile", profile_file, "--json").out)
    timeline = document["timeline"]
    at = timeline["steps"][timeline["peak"]]
    assert sum(size for name, size in at.items() if name.endswith("_bytes")) == document["predicted_peak_bytes"]
    assert run("explain", profile_file, "--profile", profile_file).status == 2
    other = tmp_path / "other.json"
    Plan.of(["encoder.0"]).save(other)
    result = run("explain", other, "--profile", profile_file)
    assert (result.status, "makes no such call" in result.err) == (1, True)


def test_explain_refuses_a_budget_for_a_plan(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan.of(["h.0"]).save(path)
    assert run("explain", path, "--budget", "1GiB").status == 2


@pytest.mark.parametrize("command", [["solve", "--budget", "80MiB"], ["explain"]], ids=["solve", "explain"])
def test_it_imports_no_torch(profile_file: Path, command: list[str]) -> None:
    assert not imports_torch([*command, str(profile_file)])
