"""What a verification found, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...solvers.units import format_bytes, format_seconds
from .layout import DEFAULT_WIDTH, MINIMUM_WIDTH, format_table

if TYPE_CHECKING:  # it comes with torch
    from ..._check.verify import Difference, Verification

_LISTED = 12  # differences in a table; the rest are counted


def headline(found: Verification) -> str:
    """Return the verdict and its reason in a sentence."""
    if found.verdict == "exact":
        return f"Exact: the planned step of {found.model} is the plain step, bit for bit"
    if found.verdict == "nothing recomputed":
        if not found.segments:
            return "Nothing recomputed: the plan keeps every call, so there was nothing to verify"
        return (
            f"Nothing recomputed: no segment of the plan ran again in a step of {found.model}, so there was nothing to "
            "verify. Its calls are not made, or need no gradients"
        )
    if found.verdict == "not repeatable":
        noise = found.plain_differences[0]
        return (
            f"Not repeatable: {_called(noise)}{_when(noise, found)} differs between two plain runs of {found.model}: "
            f"{_extent(noise)}. That is not the plan's doing"
        )
    return f"Different: {_what_differs(found)}{_whose(found)}"


def _what_differs(found: Verification) -> str:
    first = found.first
    if first is not None:
        return f"{_called(first)}{_when(first, found)} is not that of the plain step of {found.model}: {_extent(first)}"
    if found.error is not None:
        return f"the planned step of {found.model} fails, and the plain one does not: {found.error}"
    return f"the planned step of {found.model} is not the plain one, which does not repeat itself either"


def _whose(found: Verification) -> str:
    """Say which call the plan should not recompute."""
    if not found.wrong_replays:
        return ""
    wrong = found.wrong_replays[0]
    return (
        f". The plan is to blame: {wrong.name} cannot be repeated exactly, and its replay is not its forward: "
        f"{_extent(wrong)}. Keep that call"
    )


def figures(found: Verification) -> list[tuple[str, str, str]]:
    """Return the figures of the plain and the planned step that there are, each with what it is."""
    sizes = [
        ("predicted peak", found.predicted_plain_peak_bytes, found.predicted_peak_bytes),
        ("measured peak", found.measured_plain_peak_bytes, found.measured_peak_bytes),
    ]
    seconds = [
        ("predicted step", found.predicted_plain_seconds, found.predicted_seconds),
        ("measured step", found.measured_plain_seconds, found.measured_seconds),
    ]
    rows = [(name, format_bytes(plain), format_bytes(planned)) for name, plain, planned in sizes if plain and planned]
    if found.budget_bytes is not None:
        rows.insert(0, ("budget", "-", format_bytes(found.budget_bytes)))
    return rows + [(name, format_seconds(one), format_seconds(two)) for name, one, two in seconds if one and two]


def verification_text(found: Verification, *, width: int = DEFAULT_WIDTH) -> str:
    """Return `found` as text at most `width` columns wide, the verdict first."""
    width = max(width, MINIMUM_WIDTH)
    blocks = [_fill(headline(found), width), _facts(found, width)]
    rows = figures(found)
    if rows:
        blocks.append(format_table(["", "plain", "planned"], rows, width, elide=0))
    if found.measured_peak_bytes is not None:
        blocks.append(_fill("Measured is one forward and backward, without an optimizer", width))
    if found.error is not None and found.error not in headline(found):
        blocks.append(_fill(f"The planned step raised {found.error}", width))
    blocks += _differences(found, width)
    if found.not_replayed and found.replays:
        blocks.append(_list("Segments that never ran again", found.not_replayed, width))
    if found.not_met:
        blocks.append(_list("Units to keep or skip that forward never came to", found.not_met, width))
    if found.notes:
        blocks.append(_list("Notes", found.notes, width))
    return "\n\n".join(blocks) + "\n"


def _facts(found: Verification, width: int) -> str:
    compared = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in found.compared.items())
    rows = [
        ("compared", f"{compared}; in {_count(found.steps, 'step')}"),
        ("plan", f"{_count(found.segments, 'segment')}, {_count(found.replays, 'replay')}"),
        ("plain runs", f"{found.plain_runs}, {'all the same' if found.repeatable else 'not the same'}"),
        ("ran on", f"{found.device}, torch {found.torch_version}"),
        ("deterministic algorithms", "on" if found.deterministic else "off"),
    ]
    names = max(len(name) for name, _ in rows) + 2
    return "\n".join(_fill(name.ljust(names) + text, width, indent=" " * names) for name, text in rows)


def _differences(found: Verification, width: int) -> list[str]:
    blocks = []
    if found.wrong_replays:
        blocks.append(_table("Replays against their forwards", found.wrong_replays, found, width))
    if found.differences:
        blocks.append(_table("Planned against plain", found.differences, found, width))
    elif not found.repeatable and found.error is None:
        blocks.append(_fill("The planned run was the same as the first plain run, bit for bit", width))
    if found.repeatable:
        return blocks
    blocks.append(_table("Plain against plain", found.plain_differences, found, width))
    if found.over_noise is not None:
        times = f"{found.over_noise:.3g} times as far"
        text = f"The planned run is at most {times} from the plain one as plain runs are from one another"
        blocks.append(_fill(text, width))
    if not found.deterministic:
        blocks.append(_fill("torch.use_deterministic_algorithms(True) makes more operators repeat themselves", width))
    return blocks


def _table(title: str, differences: Sequence[Difference], found: Verification, width: int) -> str:
    rows = []
    for each in differences[:_LISTED]:
        name = f"{_called(each)}: {each.what}" if each.what else _called(each)
        count = f"{each.different_elements} of {each.elements}" if each.elements else "-"
        row = [name, count, _number(each.largest_difference), _number(each.relative_difference)]
        rows.append([str(each.step), *row] if found.steps > 1 else row)
    header = ["what", "elements", "largest", "relative"]
    if found.steps > 1:
        header = ["step", *header]
    text = _fill(f"{title}: {_count(len(differences), 'difference')}, in the order of the step", width) + "\n"
    text += format_table(header, rows, width, elide=header.index("what"))
    return text + (f"\nand {len(differences) - _LISTED} more" if len(differences) > _LISTED else "")


def _called(difference: Difference) -> str:
    if difference.kind == "gradient":
        return f"gradient of {difference.name}"
    if difference.kind == "input gradient":
        return f"gradient of input {difference.name}"
    return f"{difference.kind} {difference.name}".rstrip()


def _when(difference: Difference, found: Verification) -> str:
    return f", step {difference.step} of {found.steps}," if found.steps > 1 else ""


def _extent(difference: Difference) -> str:
    if difference.what:
        return difference.what
    text = f"{difference.different_elements} of {difference.elements} elements"
    if difference.largest_difference is None:
        return text
    return f"{text}, by up to {_number(difference.largest_difference)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _count(number: int, noun: str) -> str:
    return f"{number} {_plural(noun, number)}"


def _list(title: str, lines: Sequence[str], width: int) -> str:
    return "\n".join([title, *(_fill(f"  {line}", width, indent="    ") for line in lines)])


def _fill(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
