"""One page for people: figures, tables and sentences, as text of a given width and as HTML for notebooks."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DEFAULT_WIDTH = 100
MINIMUM_WIDTH = 40
BRIEF = 80

BLUE, YELLOW = "#4477aa", "#ccbb44"  # they can be read on white and on black
MOST_ROWS = 30
_LEAST_SHORTENED = 12
_GLUE = "\u00a0"
_APART = re.compile(
    r"(?<=\d) (?=(?:[KMGT]?i?B|µs|ms|s)\b)|(?<=\d) (?=[×%])|(?<=×) (?=\d)|(?<= --budget) (?=\S)|(?<=\w) (?=\d+\.\d+\.)"
)
"""Spaces where a line is not broken: between a figure and its unit, or a name and its version."""
_COMMAND = re.compile(r"Next[^:]*: autockpt[ .]")
"""How a line begins that is a command, to be copied as it stands."""
_PATH = re.compile(r"[\"'(]*(?:~|\.{0,2})/\S")
"""How a word begins that is a path."""
_LINE = "1px solid rgba(128,128,128,.35)"


class Bar(NamedTuple):
    """A cell with a bar behind it in HTML: its text, and the length of the bar, from 0 to 1."""

    text: str
    share: float
    colour: str = BLUE

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table with a header. Columns of figures are aligned right; ``-`` and empty cells count as figures.

    Attributes:
        header: a name for each column.
        rows: the cells of each row. To make a tree, the first cell is indented by two blanks per level.
        title: lines above the table; a line that begins with blanks is indented.
        below: lines below the table.
        elide: the column whose cells are shortened in the middle if text has no room; empty for the first column.
        least: characters that `elide` keeps before whole columns are left out; 0 for as many as it needs.
        least_told: the columns that text leaves out if it has no room, in this order.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | Bar]]
    title: str = ""
    below: str = ""
    elide: str = ""
    least: int = 0
    least_told: Sequence[str] = ()

    def text(self, width: int) -> str:
        """Return the table as text at most `width` characters wide, without trailing blanks."""
        columns = {name: [str(row[i]) for row in self.rows] for i, name in enumerate(self.header)}
        sizes = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
        elide = self.elide or self.header[0]
        least = min(sizes[elide], self.least or sizes[elide])
        for name in self.least_told:
            if sum(sizes.values()) - sizes[elide] + least + 2 * (len(sizes) - 1) > width:
                del columns[name], sizes[name]
                elide = elide if elide in sizes else next(iter(sizes))
                least = min(least, sizes[elide])
        spare = width - sum(sizes.values()) - 2 * (len(sizes) - 1)
        if spare < 0:
            least = min(max(len(elide), _LEAST_SHORTENED), sizes[elide])
            if sizes[elide] + spare < least:
                return "\n".join([*_lines(self.title, width), *_records(columns, width), *_lines(self.below, width)])
            sizes[elide] += spare
        columns[elide] = [shorten(cell, sizes[elide]) for cell in columns[elide]]
        laid = [
            [cell.rjust(sizes[name]) if _are_figures(cells) else cell.ljust(sizes[name]) for cell in (name, *cells)]
            for name, cells in columns.items()
        ]
        lines = ["  ".join(row).rstrip() for row in zip(*laid, strict=True)]
        lines.insert(1, "-" * min(width, max(map(len, lines))))
        return "\n".join([*_lines(self.title, width), *lines, *_lines(self.below, width)])

    def html(self) -> str:
        """Return the table as HTML, at most `MOST_ROWS` rows. Of a tree, the deepest levels are left out first."""
        right = [_are_figures([str(row[i]) for row in self.rows]) for i in range(len(self.header))]

        def cells(tag: str, row: Sequence[str | Bar]) -> str:
            found = []
            for cell, is_figure in zip(row, right, strict=True):
                text, side = str(cell), "right" if is_figure else "left"
                text = "\u2003" * (_indent(text) // 2) + html.escape(text.lstrip())
                style = f"padding:.15em .6em;text-align:{side};border:none;border-bottom:{_LINE}"
                if is_figure and tag == "td":
                    style += ";white-space:nowrap"
                if isinstance(cell, Bar):
                    end = f"{100 * min(max(cell.share, 0.0), 1.0):.1f}%"
                    bar = f"linear-gradient(to right,{cell.colour}66 {end},transparent {end})"
                    style += f";min-width:8em;background:{bar}"
                found.append(f'<{tag} style="{style}">{text}</{tag}>')
            return f'<tr style="background:none">{"".join(found)}</tr>'

        rows = list(self.rows)
        for depth in sorted({_indent(str(row[0])) for row in rows}, reverse=True)[:-2]:
            if len(rows) > MOST_ROWS:
                rows = [row for row in rows if _indent(str(row[0])) < depth]
        more = f"and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
        return (
            _paragraphs(self.title)
            + '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:90%;margin:.3em 0">'
            + f"<thead>{cells('th', self.header)}</thead>"
            + f"<tbody>{''.join(cells('td', row) for row in rows[:MOST_ROWS])}</tbody></table></div>"
            + _paragraphs("\n".join(filter(None, (more, self.below))))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A title, named figures, and blocks one below the other.

    Attributes:
        title: one or more sentences.
        figures: a name, a figure and a remark each.
        blocks: text, in which a line that begins with blanks is indented; tables; functions from a width to text.
        document: what ``--json`` prints instead of the page.
    """

    title: str = ""
    figures: Sequence[tuple[str, str, str]] = ()
    blocks: Sequence[str | PageTable | Callable[[int], str]]
    document: Mapping[str, object] = field(default_factory=dict)

    def text(self, width: int = DEFAULT_WIDTH) -> str:
        """Return the page as text at most `width` characters wide, but never narrower than `MINIMUM_WIDTH`.

        Only a line that is a command, or has a path in it, may be wider.
        """
        width = max(width, MINIMUM_WIDTH)
        blocks = ["\n".join(_lines(self.title, width)), "\n".join(self._figures(width))]
        for block in self.blocks:
            if isinstance(block, str):
                blocks.append("\n".join(_lines(block, width)))
            else:
                blocks.append(block.text(width) if isinstance(block, PageTable) else block(width))
        return "\n\n".join(filter(None, blocks)) + "\n"

    def brief(self, width: int = BRIEF) -> str:
        """Return the page as text at most `BRIEF` characters wide."""
        return self.text(min(width, BRIEF))

    def html(self) -> str:
        """Return the page as HTML for notebooks; all text is escaped."""
        tiles = "".join(
            f'<div style="margin:0 2em .4em 0"><div style="font-size:85%;opacity:.7">{html.escape(name)}</div>'
            f'<div style="font-size:130%;font-weight:600">{html.escape(figure)}</div>'
            f'<div style="font-size:85%;opacity:.7;max-width:24em">{html.escape(remark)}</div></div>'
            for name, figure, remark in self.figures
        )
        blocks = []
        for block in self.blocks:
            if isinstance(block, str):
                blocks.append(_paragraphs(block))
            elif isinstance(block, PageTable):
                blocks.append(block.html())
            else:
                drawn, style = html.escape(block(BRIEF)), "white-space:pre;font-family:monospace;line-height:1.1"
                blocks.append(f'<div style="{style};overflow-x:auto">{drawn}</div>')
        blocks = [f'<div style="margin:0 0 .9em">{block}</div>' for block in blocks]
        return (
            '<div style="max-width:60em;line-height:1.35;margin:.5em 0 1em">'
            f'<div style="font-size:115%;font-weight:600;margin-bottom:.6em">{html.escape(self.title)}</div>'
            f'<div style="display:flex;flex-wrap:wrap">{tiles}</div>{"".join(blocks)}</div>'
        )

    def _figures(self, width: int) -> list[str]:
        """Lay out the figures. A remark that does not fit gets lines of its own."""
        names = max((len(name) for name, _, _ in self.figures), default=0)
        figures = max((len(figure) for _, figure, _ in self.figures), default=0)
        lines = []
        for name, figure, remark in self.figures:
            line = f"{name.ljust(names)}  {figure.rjust(figures)}"
            if len(line) + 2 + len(remark) <= width:
                lines.append(f"{line}  {remark}".rstrip())
            elif len(line) <= width:
                lines += [line, *_lines(f"    {remark}", width)]
            else:
                lines += [name, *_lines(f"    {figure}\n    {remark}", width)]
        return lines


def _records(columns: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Lay out a table that is too wide: for each row its first cell, and below it the other cells with their names."""
    names, lines = list(columns), list[str]()
    for row in zip(*columns.values(), strict=True):
        before = " " * (_indent(row[0]) + 2)
        cells = [f"{name} {cell}".strip() for name, cell in zip(names[1:], row[1:], strict=True) if cell]
        lines += [shorten(row[0], width).rstrip(), *_lines(before + ", ".join(cells), width)]
    return [line for line in lines if line]


def counted(number: int, noun: str) -> str:
    """Return ``1 loss``, ``2 losses``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def filled(text: str, width: int) -> str:
    """Wrap each line of `text`, and keep its indent. Words are not broken, and figures stay with their units."""
    return "\n".join(_lines(text, width, breaks=False))


def _lines(text: str, width: int, *, breaks: bool = True) -> list[str]:
    """Wrap each line of `text`, and keep its indent. If `breaks`, a word that is longer than a line is broken.

    A command stays in one line, and a path whole, however long they are: somebody copies them.
    """
    lines = []
    for line in text.splitlines():
        if _COMMAND.match(line):
            lines.append(line)
            continue
        indent = " " * min(_indent(line), width // 2)
        whole = _APART.sub(_GLUE, line)
        cut = breaks and not any(map(_PATH.match, line.split()))
        how = {"subsequent_indent": indent, "break_on_hyphens": False, "break_long_words": cut}
        lines += [each.replace(_GLUE, " ") for each in textwrap.wrap(whole, width, **how)]  # type: ignore[arg-type]
    return lines


def _paragraphs(text: str) -> str:
    return "".join(
        f'<div style="margin:.2em 0 .2em {_indent(line) / 2}em">{html.escape(line.strip())}</div>'
        for line in text.splitlines()
    )


def _are_figures(cells: Sequence[str]) -> bool:
    return all(cell in ("", "-") or cell.lstrip("-")[:1].isdigit() for cell in cells)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def shorten(cell: str, size: int) -> str:
    """Cut the middle out of `cell` if it is longer than `size`. Its indent stays, but takes at most half of `size`."""
    if len(cell) <= size:
        return cell
    word = cell.lstrip()
    indent = min(_indent(cell), size // 2)
    room = size - indent
    if len(word) > room:
        head = (room - 1) // 3
        word = f"{word[:head]}…{word[len(word) - (room - 1 - head) :]}"
    return " " * indent + word
