"""Every message that docs/troubleshooting.md quotes is one that the library prints, and every warning is there."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any

import pytest

import autockpt
from tests.pages import PAGES, ROOT, blocks, run

PAGE = PAGES["troubleshooting.md"]
LEAST_WORDS = 4
"""Code of so many words is a message, but for what `CODE` finds."""

CODE = re.compile(r"\w\(|\w=|python ")


def strings(path: str) -> list[str]:
    return [
        node.value
        for file in sorted((ROOT / "autockpt").rglob(path))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@functools.cache
def printed() -> list[str]:
    return strings("*.py") + strings("solvers/*.py") + strings("solvers/*/*.py")  # behind a link


SAID = [text for text in strings("_train/messages/said.py") if text[:1].islower() or text[:1] == "{"]


def parts(quoted: str) -> list[str]:
    """What stands between names and figures."""
    return [part.strip(" .:;") for part in quoted.split("…") if part.strip(" .:;")]


QUOTED = [text for text in re.findall(r"`([^`\n]+)`", PAGE) if len(text.split()) >= LEAST_WORDS]
MESSAGES = sorted({text for text in QUOTED if "…" in text or not CODE.search(text)})
(_, WARNINGS) = PAGE.split("## A warning comes")
ROWS = re.findall(r"^\| `([^`]+)` \|", WARNINGS, re.MULTILINE)


@pytest.mark.parametrize("quoted", MESSAGES)
def test_a_quoted_message_is_printed(quoted: str) -> None:
    for part in parts(quoted):
        assert any(part in each for each in printed()), part


@pytest.mark.parametrize("row", ROWS)
def test_a_warning_of_the_table_is_one_that_is_quoted(row: str) -> None:
    assert len(row.split()) < LEAST_WORDS or row in MESSAGES


@pytest.mark.parametrize("said", [text for text in SAID if " " in text])
def test_every_warning_of_a_training_is_in_the_table(said: str) -> None:
    assert any(all(part in said for part in parts(row)) for row in ROWS), said


def test_the_error_that_is_shown_has_the_lines_of_today() -> None:
    """But for figures, and for what stands at the peak, which are those of one machine."""
    pytest.importorskip("transformers")
    found: Any = run(blocks("recipes.md", "python")[:1], "recipes.md", {})
    with pytest.raises(autockpt.Infeasible) as caught:
        autockpt.apply(found["GPT2LMHeadModel"](found["config"]), "1MB", inputs=next(found["batches"](1)))
    (shown,) = (text for text in blocks("troubleshooting.md", "text") if text.startswith("budget 1MB"))
    today, page = (re.sub(r"[\d.]+(?: ?[KMG]i?B|%)", "…", text).splitlines() for text in (str(caught.value), shown))
    assert today[0] == page[0] and today[2:] == page[2:] and today[1].startswith("  there stand ")
