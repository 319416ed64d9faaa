"""Each recipe of docs/recipes.md trains its toy under a plan, and warns of nothing that it does not say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

import autockpt
from tests.pages import PAGES, blocks, blocks_of, run
from tests.rows import daily

PAGE = "recipes.md"
NEEDS = r"python needs ([\w ]+)"
TOY = blocks(PAGE, "python")[0]
RECIPES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGES[PAGE], re.DOTALL | re.MULTILINE))
OURS = {title: text for title, text in RECIPES.items() if blocks_of(text, "python")}
THEIRS = {title: text for title, text in RECIPES.items() if re.search(rf"^```{NEEDS}$", text, re.MULTILINE)}

SAID = {"Compiled models": "a model that has a plan trains, and its own forward was not seen"}
"""The warning that a recipe's own words announce."""

NOTHING_RECOMPUTED = {"On a GPU"}
"""Recipes whose budget is above the plain peak of the toy."""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def trained(title: str, texts: list[str], caplog: pytest.LogCaptureFixture, **given: object) -> None:
    """Run a recipe on a fresh toy; its model must be under a plan then."""
    pytest.importorskip("transformers")
    found: Any = run([TOY, *texts], PAGE, {"__name__": "recipe", **given})
    plan = autockpt.plan_of(found["model"])
    assert plan is not None and bool(plan.segments) == (title not in NOTHING_RECOMPUTED)
    warned = [each.getMessage() for each in caplog.records if each.name == "autockpt" and each.levelname == "WARNING"]
    assert [SAID[title]] == [text[: len(SAID[title])] for text in warned] if title in SAID else not warned


def test_every_recipe_is_run() -> None:
    assert OURS.keys() | THEIRS.keys() == RECIPES.keys() and not OURS.keys() & THEIRS.keys()


@pytest.mark.parametrize("title", daily(OURS, [*OURS][:1]))
def test_a_recipe_trains(title: str, caplog: pytest.LogCaptureFixture) -> None:
    if "distributed" in OURS[title] and not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("needs gloo")
    trained(title, blocks_of(OURS[title], "python"), caplog)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")  # of other people's trainers
@pytest.mark.parametrize("title", THEIRS)
def test_a_recipe_of_a_trainer_trains(title: str, caplog: pytest.LogCaptureFixture) -> None:
    needs = re.findall(rf"^```{NEEDS}$", THEIRS[title], re.MULTILINE)[0]
    for name in needs.split():
        pytest.importorskip(name)
    given: dict[str, object] = {}
    if "tokenizer" in THEIRS[title]:
        from tests.loops.test_frameworks import tokenizer

        given["tokenizer"] = tokenizer()
    trained(title, blocks_of(THEIRS[title], f"python needs {needs}"), caplog, **given)
