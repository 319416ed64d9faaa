"""A page says the same as text and as HTML, and its text fits."""

from __future__ import annotations

import fnmatch
import html
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doors import Bar, Page, PageTable

WORDS = st.lists(st.text("ab<&", min_size=1, max_size=9), min_size=1, max_size=30).map(" ".join)


@settings(max_examples=50)
@given(st.lists(st.text("ab.", min_size=1, max_size=40), min_size=1), st.integers(0, 6), st.integers(22, 60))
def test_nothing_is_cut_without_saying_so(names: list[str], indent: int, columns: int) -> None:
    rows = [[" " * indent + name, "1.00 MiB"] for name in names]
    lines = PageTable(header=["calls", "freed"], rows=rows).text(columns).splitlines()[2:]
    for (name, size), line in zip(rows, lines, strict=True):
        assert len(line) <= columns
        assert line.endswith(size)
        assert fnmatch.fnmatchcase(name.strip(), line.removesuffix(size).strip().replace("…", "*"))


@settings(max_examples=50)
@given(WORDS, st.lists(WORDS, min_size=1), st.integers(60, 120))
def test_text_and_html_say_the_same(title: str, lines: list[str], width: int) -> None:
    page = Page(
        title=title,
        figures=[("a name", "1 B", lines[0])],
        blocks=[
            "\n".join(f"  {line}" for line in lines),
            PageTable(header=["kind"], rows=[[Bar("2 B", 0.5)]], below=title),
        ],
    )
    text = page.text(width)
    assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
    shown = html.unescape(re.sub(r"<[^>]*>", " ", page.html()))
    assert [word for word in text.split() if not word.startswith("---")] == shown.split()


@settings(max_examples=50)
@given(WORDS, st.lists(st.text("ab-.", min_size=1, max_size=30), min_size=1, max_size=6), st.integers(40, 80))
def test_no_path_and_no_command_is_broken(words: str, names: list[str], width: int) -> None:
    path = "/" + "/".join(names)
    text = Page(blocks=[f"{words} {path} {words}\nNext: autockpt solve {path} -o plan.json"]).text(width)
    assert path in text.partition("Next")[0].split()
    assert text.endswith(f"\nNext: autockpt solve {path} -o plan.json\n")


def test_columns_go_in_their_order_once_the_first_is_as_short_as_it_may_be() -> None:
    row = ["a name of thirty-two characters.", "1.00 MiB", "2.00 MiB"]
    table = PageTable(header=["name", "held", "freed"], rows=[row], least=16, least_told=["held", "freed"])
    for width, header in ((60, "name held freed"), (36, "name held freed"), (35, "name freed"), (25, "name")):
        lines = table.text(width).splitlines()
        assert lines[0].split() == header.split()
        assert max(map(len, lines)) <= width
