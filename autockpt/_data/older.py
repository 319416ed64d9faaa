"""Reads what earlier versions wrote into plans, and this one does without."""

from __future__ import annotations

from typing import Any

import msgspec

RUNS_AGAIN = (
    "units in {calls} were remade by an earlier version of autockpt; these calls run again as a whole instead. "
    "Results stay exact; peak and cost are not the predicted ones. Solve the profile again for a plan that is"
)


def modernise(data: bytes) -> bytes:
    """Return a plan's or frontier's JSON as this version writes it.

    Args:
        data: the document, of a schema that is still read.

    Returns:
        The document. Segments whose dropouts were remade from their noise (``remake``) keep and skip nothing: without
        the remade products their other units may lack what they read. A note says so.
    """
    if b'"remake"' not in data:
        return data
    document = msgspec.json.decode(data, type=dict[str, Any])
    for plan in (document, *_objects(document.get("plans"))):
        calls = []
        for segment in _objects(plan.get("segments")):
            if segment.pop("remake", None):
                for units in ("keep", "skip", "kept_bytes"):
                    segment.pop(units, None)
                calls += _list(segment.get("calls"))
        if calls:
            note = RUNS_AGAIN.format(calls=", ".join(map(str, calls)))
            plan["notes"] = [*_list(plan.get("notes", [])), note]
    return msgspec.json.encode(document)


def _list(value: Any) -> list[Any]:
    """Return a list as it is, and nothing of what should be one; whoever decodes the document says what is wrong."""
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list."""
    return [each for each in _list(value) if isinstance(each, dict)]
