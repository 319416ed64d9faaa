"""What is written for users holds: blocks of the README and of docs/ run, figures are those of the benchmarks."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import torch

import autockpt
import autockpt.solvers
from autockpt import Plan
from autockpt.solvers import SOLVERS
from tests.cli.shell import VERBS, verb
from tests.doors import CHART_LAYERS
from tests.pages import PAGES, README, ROOT, blocks, run
from tests.rows import daily

OWN_TEST = "recipes.md"  # each of its blocks runs by itself, in tests/test_recipes.py
MODULES = sorted(module.name for module in pkgutil.walk_packages(autockpt.__path__, "autockpt."))
ROOMS = sorted({name.split(".")[1] for name in MODULES} - {"__main__", "solvers"})
"""Importing the first runs the command; the last has examples of its own tests, which need no torch."""

CLAIMS = {text.partition("\n")[0]: text for text in PAGES["evidence.md"].split("\n## ")[1:]}
COMMANDS = sorted({line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()})


WITH_BLOCKS = [page for page in PAGES if blocks(page, "python") and page != OWN_TEST]
LONG = "budget.md"
"""It plans a dozen times: as long as all other pages together."""


@pytest.mark.parametrize("page", daily(WITH_BLOCKS, [page for page in WITH_BLOCKS if page != LONG]))
def test_the_python_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(blocks(page, "python"), page, {})
    printed = capsys.readouterr().out
    if page == "index.md":
        assert re.search(r"^Recomputed: .*^Exact", printed, re.DOTALL | re.MULTILINE)
    if page in ("index.md", "start.md"):  # of what is printed, the figures agree, and no alarm is raised
        assert "above" not in printed
        rows = dict(re.findall(r"^(budget|predicted peak|measured peak)  .* ([0-9.]+) MB$", printed, re.MULTILINE))
        assert rows["predicted peak"] == rows["measured peak"]
        assert float(rows["measured peak"]) <= float(rows["budget"])
    if page == "start.md":
        (measured_bytes,) = re.findall(r"^(\d+)$", printed, re.MULTILINE)
        assert int(measured_bytes) <= autockpt.solvers.parse_bytes("28MB")  # "within the budget", says the comment


def test_the_comment_in_the_example_says_when_the_plan_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """Step 1 is recorded, step 2 timed, and the plan made as step 3 begins."""
    (text,) = blocks("index.md", "python")
    two_steps, loop = text.partition("print(")[0].replace("range(3)", "range(2)"), text.partition("print(")[0]
    assert two_steps != loop and "step 1 is recorded, step 2 timed, and the plan made as step 3 begins" in loop
    caplog.set_level("INFO", "autockpt")
    for shown, said in ((two_steps, ["recorded a step"]), (loop, ["recorded a step", "planned in"])):
        caplog.clear()
        namespace: dict[str, Any] = {}
        exec(compile(shown, "index.md", "exec"), namespace)
        assert [words for words in ("recorded a step", "planned in") if words in caplog.text] == said
        assert (autockpt.plan_of(namespace["model"]) is not None) == ("planned in" in said)
        assert not [each for each in caplog.records if each.levelname != "INFO"]


def test_the_json_blocks_are_plans() -> None:
    plans = [msgspec.json.decode(text, type=Plan) for page in PAGES for text in blocks(page, "json")]
    assert all(plan.segments for plan in plans) and plans


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_figures_of_a_claim_stand_in_the_file_that_it_names(claim: str) -> None:
    text = CLAIMS[claim]
    (file,) = [ROOT / name for name in re.findall(r"`(benchmarks/\S+\.md)`", text)]
    (command,) = re.findall(r"^```sh\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    assert importlib.util.find_spec(shlex.split(command)[2]) and command.startswith("python -m benchmarks.")
    figures = re.findall(r"\*\*(\d.*?)\*\*", text)
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\.?\d)", file.read_text()), f"{figure} is not in {file}"
    assert figures


def test_every_result_that_was_named_once_is_named_still() -> None:
    """Each benchmark that the README's table had, and the runs on GPUs."""
    named = {name for text in CLAIMS.values() for name in re.findall(r"`benchmarks/(\S+)/README\.md`", text)}
    once = "budgets budgets/ragged budgets/twenty checks frontier host_cost in_place overhead recording saved_bytes"
    assert named >= {*once.split(), "solving"}
    assert named >= {f"gpu/results/{folder.name}" for folder in (ROOT / "benchmarks/gpu/results").iterdir()}


def _choices() -> dict[str, list[str]]:
    """The rows of the README's table: choice to cells."""
    rows = [line.replace("*", "").strip("|").split("|") for line in README.splitlines() if line.startswith("| ")][2:]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


WITHIN = "autockpt, within 139 MB; on the H100 the lowest it found"


def test_the_choices_on_a_cpu_are_those_of_the_stored_run() -> None:
    rows = json.loads((ROOT / "benchmarks/frontier/results-large.json").read_text())["models"]["gpt2"]["rows"]
    stored = {(row["family"], row["setting"]): row for row in rows}
    choices = {
        "plain": ("plain", ""),
        "transformers' switch, every second block": ("transformers", "every 2 blocks"),
        "autockpt, within that memory": ("autockpt", "50 %"),
        "transformers' switch": ("transformers", "all blocks"),
        "`torch.utils.checkpoint` on every block": ("uniform", "runs of 1"),
        WITHIN: ("autockpt", "the switch's peak"),
    }
    assert list(_choices()) == list(choices)
    for choice, key in choices.items():
        row, (memory, seconds, *_) = stored[key], _choices()[choice]
        assert row["gradients"] == row["buffers"] == "equal"
        assert memory == f"{row['activation_bytes'] / 1e6:.0f} MB"
        assert seconds == ("" if choice == "plain" else f"{row['time']['ratio'] - 1:+.1%}".replace("%", " %"))


def test_the_choices_on_an_h100_are_those_of_the_stored_run() -> None:
    run = "benchmarks/gpu/results/2026-11-26-h100-loops/equal_peak/stage2.json"
    torchs, switch = json.loads((ROOT / run).read_text())["rows"]
    assert "torch" in torchs["name"] and "transformers" in switch["name"]
    plain_bytes = torchs["footprint"]["allocated_peak_bytes"]
    shown = {
        "plain": (plain_bytes, None),
        "transformers' switch": (switch["measured"]["their_peak_bytes"], switch["measured"]["their overhead"]),
        "`torch.utils.checkpoint` on every block": (
            torchs["measured"]["their_peak_bytes"],
            torchs["measured"]["their overhead"],
        ),
        WITHIN: (torchs["measured"]["peak_bytes"], torchs["measured"]["overhead"]),
    }
    for choice, cells in _choices().items():
        if choice not in shown:
            assert cells[2:] == ["not run", ""]
            continue
        nbytes, overhead = shown[choice]
        assert cells[2] == f"{nbytes / 1e9:.2f} GB"
        assert cells[3] == ("" if overhead is None else f"{overhead:+.1%}".replace("%", " %"))


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
def test_the_line_that_the_readme_changes_runs() -> None:
    """Both sides of the diff, in a script that has a model, its batches and an optimizer."""
    transformers = pytest.importorskip("transformers")
    (diff,) = blocks("README.md", "diff")
    for ours, side in ((False, "-"), (True, "+")):
        lines = [line[1:] for line in diff.splitlines() if line[:1] in (" ", side)]
        assert len(lines) == len(diff.splitlines()) - 1  # one line for another
        sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 16}
        config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
        ids = torch.randint(50, (2, 16))
        namespace = {
            "autockpt": autockpt,
            "model": model,
            "loader": [{"input_ids": ids, "labels": ids}] * 4,
            "optimizer": torch.optim.AdamW(model.parameters()),
        }
        before = model.lm_head.weight.detach().clone()
        exec(compile("\n".join(lines), "README.md", "exec"), namespace)
        assert not torch.equal(model.lm_head.weight, before)
        assert (autockpt.plan_of(model) is not None) == ours


def test_the_first_screen_is_one_screen() -> None:
    """Fifty lines of text stand on a laptop's screen; the last paragraph only says where to read on."""
    screen, _, _ = README.partition("[Start](docs/start.md)")
    assert len(screen.splitlines()) <= 50
    assert "instead of `gradient_checkpointing_enable()`" in screen


def test_the_limits_are_a_page_of_what_to_do() -> None:
    """They were 41 KB, and of every third row the action was nothing."""
    assert len(PAGES["limits.md"].encode()) <= 8 * 2**10
    for page in ("limits.md", "ranks.md", "replays.md"):
        rows = [line for line in PAGES[page].splitlines() if line.startswith("| ") and not line.startswith("| ---")]
        assert rows and not [row for row in rows if row.rstrip(" |").rpartition("| ")[2] in ("nothing", "–", "-")]


def test_the_words_of_the_picture_are_explained_beside_it() -> None:
    words = re.findall(r"^\| ([a-z ]+) \| \S", PAGES["index.md"].partition("| in the picture |")[2], re.MULTILINE)
    assert set(words) == {"plain step", *(name for _, _, name, _ in CHART_LAYERS)}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_lead_somewhere(page: str) -> None:
    folder = ROOT if page == "README.md" else ROOT / "docs"
    for target in re.findall(r"(?:\]\(|src=\")([^)\"\s:]+)[)\"]", PAGES[page]):
        path, _, anchor = target.partition("#")
        assert (folder / path).exists(), target
        if anchor:
            text = (folder / path).read_text() if path else PAGES[page]
            headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


def test_every_public_name_is_in_the_reference() -> None:
    for page, names in {"api.md": autockpt.__all__, "solvers.md": autockpt.solvers.__all__}.items():
        listed = re.findall(r"^\.\. auto\w+:: ([\w.]+)", PAGES["api.md"] + PAGES[page], re.MULTILINE)
        assert set(names) <= {name.rpartition(".")[2] for name in listed}


def test_every_solver_and_command_is_in_the_reference() -> None:
    headings = {page: re.findall(r"^##+ (.*)", PAGES[page], re.MULTILINE) for page in ("solvers.md", "command_line.md")}
    assert set(SOLVERS) <= set(headings["solvers.md"])
    assert {f"autockpt {name}" for name in VERBS} <= set(headings["command_line.md"])
    assert {*VERBS, ""} == set(re.findall(r"^```{help} ?(\w*)$", PAGES["command_line.md"], re.MULTILINE))


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("autockpt ")])
def test_the_commands_parse(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)[1:]
    command = verb(name)
    options = [
        option for parameter in command.params for option in parameter.opts if isinstance(parameter, click.Option)
    ]
    assert {argument for argument in arguments if argument.startswith("-") and argument != "-"} <= set(options)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("make ")])
def test_the_make_targets_exist(line: str) -> None:
    for target in shlex.split(line, comments=True)[1:]:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # as torch imports its compiler
@pytest.mark.parametrize("room", ROOMS)
def test_the_examples_in_docstrings_run(room: str) -> None:
    names = [name for name in MODULES if name.split(".")[1] == room]
    if room == "integrations":  # each imports its framework
        names = [name for name in names if name.endswith((".integrations", ".held")) or find_spec(name.split(".")[-1])]
    assert [name for name in names if doctest.testmod(importlib.import_module(name)).failed] == []
