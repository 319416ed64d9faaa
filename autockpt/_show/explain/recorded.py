"""The recorded profiles that come with autockpt, as a table."""

from __future__ import annotations

import textwrap
from typing import Literal

import msgspec

from ..._data.shipped import RecordedProfile
from ...solvers.units import format_bytes, format_seconds
from .layout import DEFAULT_WIDTH, MINIMUM_WIDTH, drop_columns, format_table

_LEAST_TOLD = ("model", "optimizer", "precision", "device")


class RecordedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``autockpt profiles --json`` prints."""

    kind: Literal["profiles"] = "profiles"
    profiles: tuple[RecordedProfile, ...]


def recorded_text(report: RecordedReport, *, width: int = DEFAULT_WIDTH) -> str:
    """Render the table."""
    width = max(width, MINIMUM_WIDTH)
    found = report.profiles
    columns: dict[str, list[str]] = {
        "name": [each.name for each in found],
        "model": [each.model for each in found],
        "batch": [each.recipe.batch for each in found],
        "precision": [each.recipe.precision for each in found],
        "optimizer": [each.recipe.optimizer for each in found],
        "device": [each.device for each in found],
        "plain peak": [format_bytes(each.plain_peak_bytes) for each in found],
        "plain step": [format_seconds(each.plain_seconds) for each in found],
    }
    drop_columns(columns, _LEAST_TOLD, width)
    rows = [list(cells) for cells in zip(*columns.values(), strict=True)]
    blocks = [
        textwrap.fill("Recorded profiles; each name can stand wherever a profile file can", width),
        format_table(list(columns), rows, width, elide=1),
    ]
    predicted = [each.name for each in found if each.mode == "fake"]
    if predicted:
        which = "these" if len(predicted) == len(found) else ", ".join(predicted)
        said = f"Nothing ran for {which}: peaks and seconds are predicted, by the roofline of the device"
        blocks.append(textwrap.fill(said, width))
    return "\n\n".join(blocks) + "\n"
