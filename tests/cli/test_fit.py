"""`autockpt fit`: which devices hold a step."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cli.shell import Run, imports_torch
from tests.doors import DEVICES, fit_room, fit_ways
from tests.handmade import chain_profile
from tests.remembered import remembering

BUILD = """
    import torch

    def build():
        torch.manual_seed(0)
        block = lambda: torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
        model = torch.nn.Sequential(*(block() for _ in range(6))).to("meta")
        return model, torch.empty(500_000, 1024, device="meta")
"""


@pytest.fixture(autouse=True, scope="module")
def once() -> Iterator[None]:
    with remembering(fit_room, "choose", "frontier", "find_planned"), remembering(fit_ways, "frontier", "find_planned"):
        yield


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(BUILD))
    return f"{path}:build"


@pytest.mark.sweep  # each part of it is asked for by a test below, in less time
def test_a_shipped_profile_on_devices_that_people_own(run: Run) -> None:
    result = run("fit", "gpt2-xl", "--gpu", "t4,RTX 4090", "--gpu", "h100", "-v")
    assert (result.status, result.err) == (0, "")
    rows: dict[str, str] = {}
    for line in result.out.splitlines():
        rows.setdefault(line.partition("  ")[0], line)
    assert "  no  " in rows["t4"] and "  4 × 2  " in rows["rtx4090"] and "  yes  " in rows["h100"]
    assert "Not on t4: the lowest peak at once, 15.27 GiB, stands at the optimizer" in result.out
    assert "all figures are predicted" in result.out
    assert "attention core: Megatron's selective recompute. Here the peak does not fall" in result.out
    assert result.out.startswith("Fits 2 of 3 devices: 1 as it is, 1 in microbatches\n")
    assert "Next on rtx4090: 4 times backward of loss / 4, each on 2 samples" in result.out
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ("resnet-50",),
        ("gpt2-xl", "--gpu", "rtx4090"),
        ("gpt2-xl", "--gpu", "t4"),
        ("resnet-50", "--gpu", "t4", "--samples", "512"),
    ],
    ids=" ".join,
)
def test_the_first_screen_has_twenty_lines(run: Run, arguments: tuple[str, ...]) -> None:
    brief, whole = run("fit", *arguments), run("fit", *arguments, "-v")
    lines = brief.out.splitlines()
    assert len(lines) <= 20 and max(map(len, lines)) <= 80
    assert lines[0] == whole.out.splitlines()[0] and len(whole.out.splitlines()) > 20
    assert lines[-1] == "-v shows the switches of other libraries, and notes"
    if arguments == ("resnet-50",):  # the question is which of them is enough: those that are come first
        devices = lines[lines.index("-" * len(lines[lines.index("") + 2])) + 1 :]
        assert " no " not in devices[0] and "more rows; the smallest that hold the step come first" in brief.out


def test_its_json_names_the_sources(run: Run) -> None:
    document = json.loads(run("fit", "resnet-50", "--gpu", "t4", "--batch", "512", "--json").out)
    (row,) = document["rows"]
    assert (row["device"], row["samples"], row["fits"]) == ("t4", 512, "with a plan")
    best = row["ways"][0]
    assert (best["way"], best["microbatches"], best["fits"], best["same_result"]) == ("planned", 1, True, True)
    assert best["predicted_samples_per_second"] == pytest.approx(512 / best["predicted_seconds"])
    assert document["microbatches_change_the_result"] is True
    assert row["predicted_peak_bytes"] <= document["devices"]["t4"]["usable_bytes"] == DEVICES["t4"].usable_bytes
    assert "data sheet" in document["devices"]["t4"]["source"]


def test_a_function_is_recorded_without_running_it(run: Run, target: str) -> None:
    result = run("fit", target, "--gpu", "rtx4090,h200", "--optimizer", "adamw")
    assert result.status == 0, result.err
    assert "Sequential, 500000 samples" in result.out
    assert "h200" in result.out and " × " in result.out
    assert "no optimizer is counted" not in result.out
    second = " ".join(run("fit", target, "--gpu", "h200").out.partition("Nothing ran")[0].split())
    assert second.endswith("plain; no optimizer is counted (--optimizer adamw)")


def test_a_batch_of_another_shape_is_the_models_own_error(run: Run, target: str) -> None:
    """It was blamed on tensors that have no values."""
    path = Path(target.removesuffix(":build"))
    path.write_text(path.read_text().replace("500_000, 1024", "500_000, 1000"))
    result = run("fit", target)
    assert (result.status, result.out) == (2, "")
    last = result.err.splitlines()[-1]
    assert "raised RuntimeError: " in last and "[500000, 1000] X [1024, 4096]. The model's own code raised it." in last


def test_the_first_line_is_the_answer(run: Run) -> None:
    said = " ".join(run("fit", "gpt2-xl", "--gpu", "rtx4090").out.split())
    assert re.match(
        r"On rtx4090: 4 microbatches of 2, plain: [0-9.]+ samples/s, [0-9]+% faster than a plan for 8 ", said
    )
    assert "at once fit about 19 samples with a plan, 2 without" in said
    assert re.match(
        r"Fits h200 as it is, [0-9]+ samples/s \(134.95 GiB usable\)", run("fit", "resnet-50", "--gpu", "h200").out
    )


def test_where_nothing_fits_the_exit_status_is_1(run: Run) -> None:
    result = run("fit", "gpt2-xl", "--gpu", "t4")
    assert (result.status, result.err) == (1, "Error: nothing fits t4\n")
    said = " ".join(result.out.split())
    assert said.startswith("Does not fit t4: weights, gradients and optimizer alone take 14.60 GiB (13.72 GiB usable)")


def test_microbatches_that_change_the_result_are_told_and_not_recommended(run: Run) -> None:
    said = " ".join(run("fit", "resnet-50", "--gpu", "t4", "--samples", "512").out.split())
    assert said.startswith("On t4: a plan for 512 samples: ")
    assert "; microbatches would change the result (BatchNorm)" in said
    assert "another result" in said and "Not recommended: microbatches normalize by their own statistics" in said
    assert "A loss over pairs of the batch, contrastive or ranking, is another one in microbatches" in said


def test_memory_alone_has_no_seconds(run: Run) -> None:
    result = run("fit", "resnet-50", "--gpu", "9GB", "--json")
    document = json.loads(result.out)
    assert result.status == 0, result.err
    assert {way["predicted_seconds"] for row in document["rows"] for way in row["ways"]} == {None}
    assert {way["predicted_samples_per_second"] for row in document["rows"] for way in row["ways"]} == {None}
    assert document["devices"]["9GB"]["half_flops"] is None


def test_an_amount_of_memory_stands_for_the_devices_that_have_it(run: Run) -> None:
    document = json.loads(run("fit", "resnet-50", "--gpu", "24GB", "--json").out)
    assert [row["device"] for row in document["rows"]] == ["a10", "l4", "rtx3090", "rtx4090", "a5000"]


def test_where_the_host_sets_the_pace_no_overhead_is_told(run: Run, tmp_path: Path) -> None:
    """A toy on an H100 was said to be 801 % slower: its kernels take 0.1 ms, and its host 2 to launch them."""
    path = tmp_path / "toy.py"
    path.write_text(textwrap.dedent(BUILD).replace("500_000", "256"))
    result = run("fit", f"{path}:build", "--gpu", "h100", "-v")
    assert result.status == 0, result.err
    assert "h100: host-bound. The kernels of a step take " in run("fit", f"{path}:build", "--gpu", "h100").out
    assert "h100: host-bound. The kernels of a step take " in result.out
    rows = {line.partition("  ")[0]: line.split()[-2:] for line in result.out.splitlines()}
    assert rows["every block"] == ["-", "-"]
    document = json.loads(run("fit", f"{path}:build", "--gpu", "h100", "--json").out)
    assert document["rows"][0]["host_bound"] is True
    assert {each["predicted_overhead"] for each in document["switches"]} == {None}
    assert "host-bound" not in run("fit", "gpt2-xl", "--gpu", "h100").out


@pytest.mark.parametrize("columns", [40, 60, 160])
def test_it_fits_the_screen(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run("fit", "resnet-50", "--gpu", "t4,mi300x", "--batch", "128,1024")
    assert max(map(len, result.out.splitlines())) <= min(columns, 80)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt2-xl", "--gpu", "rtx4095"], "did you mean rtx4090"),
        (["gpt2-xl", "--gpu", "24"], "did you mean 24GB?"),
        (["gpt2-xl", "--gpu", "rtx9990-32GB"], "did you mean v100-32gb or rtx5090"),
        (["gpt2-xl", "--gpu", "0GB"], "at least one byte"),
        (["gpt2-xl", "--samples", "0"], "'0' is no number of samples"),
        (["gpt2-xl", "--batch", "many"], "'many' is no number of samples"),
        (["gpt2-xl", "--batch", "0"], "'0' is no number of samples"),
        (["gpt2-xl", "--batch", "0000000019999999"], "'0000000019999999' is no number of samples"),  # was read as 1
        (["gpt2-xl", "--optimizer", "adamw"], "--optimizer goes with file.py:function"),
        (["PROFILE", "--batch", "8"], "does not say how many samples its batch has"),
        (["gpt3"], "gpt2-xl"),
    ],
)
def test_misused(run: Run, profile_file: Path, arguments: list[str], words: str) -> None:
    result = run("fit", *(profile_file if each == "PROFILE" else each for each in arguments))
    assert (result.status, result.out) == (2, "")
    assert words in result.err


def test_it_imports_no_torch(profile_file: Path) -> None:
    assert not imports_torch(["fit", str(profile_file), "--gpu", "t4"])


def test_a_profile_of_ones_own_keeps_its_seconds(run: Run, profile_file: Path) -> None:
    result = run("fit", profile_file, "--gpu", "t4", "-v")
    assert "seconds as on " in result.out
    assert "How many samples the batch has is not known" in result.out


def test_a_recorded_profile_says_how_many_samples_it_has(run: Run, tmp_path: Path) -> None:
    """`fit profile.json --batch 16` was refused."""
    file = tmp_path / "of eight.json"
    msgspec.structs.replace(chain_profile(), samples=8).save(file)
    rows = json.loads(run("fit", file, "--gpu", "t4", "--batch", "8,16", "--json").out)["rows"]
    assert [row["samples"] for row in rows] == [8, 16]
    assert [way["samples"] for way in rows[1]["ways"] if way["microbatches"] == 2] == [8]
