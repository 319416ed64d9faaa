"""Pieces of pages for notebooks: a card with a title and figures, and tables with bars.

Colours come from the page, or are such that they can be read on white and on black; whatever is written is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

LINE = "1px solid rgba(128,128,128,.35)"
BLUE, YELLOW = "#4477aa", "#ccbb44"
MOST_ROWS = 30


class Bar(NamedTuple):
    """A figure with a bar behind it: what to write, and how long the bar is, from 0 to 1."""

    text: str
    share: float
    colour: str = BLUE


Cell = str | Bar


def card(title: str, below: str, figures: Iterable[tuple[str, str]], *inside: str) -> str:
    """Lay out a title, a line below it, a few named figures, and what else is given as HTML."""
    tiles = "".join(
        f'<div style="margin:0 2em .4em 0"><div style="font-size:85%;opacity:.7">{html.escape(name)}</div>'
        f'<div style="font-size:130%;font-weight:600">{html.escape(figure)}</div></div>'
        for name, figure in figures
    )
    return (
        '<div style="max-width:60em;line-height:1.35;margin:.5em 0 1em">'
        f'<div style="font-size:115%;font-weight:600">{html.escape(title)}</div>'
        f'<div style="font-size:85%;opacity:.7;margin-bottom:.6em">{html.escape(below)}</div>'
        f'<div style="display:flex;flex-wrap:wrap">{tiles}</div>' + "".join(inside) + "</div>"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, left: Collection[str]) -> str:
    """Lay out a table, at most `MOST_ROWS` rows of it; columns named in `left` are texts, the others figures."""
    more = f'<div style="opacity:.7">and {len(rows) - MOST_ROWS} more</div>' if len(rows) > MOST_ROWS else ""

    def cells(tag: str, row: Sequence[Cell]) -> str:
        found = []
        for i, cell in enumerate(row):
            side = "left" if header[i] in left else "right"
            style = f"padding:.15em .8em;text-align:{side};border:none;border-bottom:{LINE}"
            text = cell
            if isinstance(cell, Bar):
                text = cell.text
                end = f"{100 * min(max(cell.share, 0.0), 1.0):.1f}%"
                bar = f"linear-gradient(to right,{cell.colour}66 {end},transparent {end})"
                style += f";min-width:9em;background:{bar}"
            found.append(f'<{tag} style="{style}">{html.escape(str(text))}</{tag}>')
        return f'<tr style="background:none">{"".join(found)}</tr>'

    body = "".join(cells("td", row) for row in rows[:MOST_ROWS])
    return (
        '<table style="border-collapse:collapse;font-size:90%;margin:.3em 0">'
        f"<thead>{cells('th', header)}</thead><tbody>{body}</tbody></table>{more}"
    )
