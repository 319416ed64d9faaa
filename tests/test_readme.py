"""What is written for users holds: blocks of the README and of docs/ run, figures are those of the benchmarks."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import autockpt
import autockpt.solvers
from autockpt import Plan
from autockpt.solvers import SOLVERS
from tests.cli.shell import VERBS, verb

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))} | {"README.md": README}
MODULES = sorted(module.name for module in pkgutil.walk_packages(autockpt.__path__, "autockpt."))


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


COMMANDS = sorted({line for page in PAGES for block in _blocks(page, "sh") for line in block.splitlines()})


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")])
def test_the_python_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for text in _blocks(page, "python"):
        exec(compile(text, page, "exec"), namespace)
    printed = capsys.readouterr().out
    if page == "README.md":
        assert re.search(r"^Recomputed: .*^Exact", printed, re.DOTALL | re.MULTILINE)
    if page in ("README.md", "start.md"):  # of what is printed, the figures agree, and no alarm is raised
        assert "above" not in printed
        rows = dict(re.findall(r"^(budget|predicted peak|measured peak)  .* ([0-9.]+) MiB$", printed, re.MULTILINE))
        assert rows["predicted peak"] == rows["measured peak"]
        assert float(rows["measured peak"]) <= float(rows["budget"])
    if page == "start.md":
        (measured_bytes,) = re.findall(r"^(\d+)$", printed, re.MULTILINE)
        assert int(measured_bytes) <= autockpt.solvers.parse_bytes("28MB")  # "within the budget", says the comment


def test_the_comment_in_the_example_says_when_the_plan_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """Step 1 is recorded, step 2 timed, and the plan made as step 3 begins."""
    (text,) = _blocks("README.md", "python")
    two_steps, loop = text.partition("print(")[0].replace("range(3)", "range(2)"), text.partition("print(")[0]
    assert two_steps != loop and "step 1 is recorded, step 2 timed, and the plan made as step 3 begins" in loop
    caplog.set_level("INFO", "autockpt")
    for shown, said in ((two_steps, ["recorded a step"]), (loop, ["recorded a step", "planned in"])):
        caplog.clear()
        namespace: dict[str, Any] = {}
        exec(compile(shown, "README.md", "exec"), namespace)
        assert [words for words in ("recorded a step", "planned in") if words in caplog.text] == said
        assert (autockpt.plan_of(namespace["model"]) is not None) == ("planned in" in said)
        assert not [each for each in caplog.records if each.levelname != "INFO"]


def test_the_json_blocks_are_plans() -> None:
    plans = [msgspec.json.decode(text, type=Plan) for page in PAGES for text in _blocks(page, "json")]
    assert all(plan.segments for plan in plans) and plans


def test_the_figures_of_the_readme_stand_in_the_files_that_it_names() -> None:
    rows = [
        line for line in README.splitlines() if line.startswith("|") and ("benchmarks." in line or "the same" in line)
    ]
    file, found = None, 0
    for row in rows:
        for link in re.findall(r"\]\((benchmarks/\S+)\)", row):
            file = ROOT / link
        assert file is not None, row
        for figure in re.findall(r"\*\*(\d.*?)\*\*", row):
            found += 1
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\.?\d)", file.read_text()), f"{figure} is not in {file}"
    assert found


@pytest.mark.parametrize("page", PAGES)
def test_the_links_lead_somewhere(page: str) -> None:
    folder = ROOT if page == "README.md" else ROOT / "docs"
    for target in re.findall(r"\]\(([^)\s:]+)\)", PAGES[page]):
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


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    if name.endswith("__main__"):
        pytest.skip("importing it runs the command")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
