"""The pages that are written for users, and the blocks of code on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))} | {"README.md": README}


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page in a language, such as ``python`` or ``python needs trl``."""
    return blocks_of(PAGES[page], language)


def blocks_of(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(texts: Iterable[str], page: str, namespace: dict[str, object]) -> dict[str, object]:
    """Run blocks of a page one after the other, in one namespace; return it."""
    for text in texts:
        exec(compile(text, page, "exec"), namespace)
    return namespace
