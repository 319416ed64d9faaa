"""Reads what earlier versions wrote into plans, and this one does without."""

from __future__ import annotations

from typing import Any

import msgspec

RAN_AGAIN = (
    "units of {calls} were remade by an earlier version of autockpt; these calls run again as a whole instead. "
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
        again = [segment for segment in _objects(plan.get("segments")) if segment.pop("remake", None)]
        for segment in again:
            for units in ("keep", "skip", "kept_bytes"):
                segment.pop(units, None)
        notes = plan.setdefault("notes", [])
        if again and isinstance(notes, list):
            calls = ", ".join(str(call) for segment in again for call in segment.get("calls") or ())
            notes.append(RAN_AGAIN.format(calls=calls))
    return msgspec.json.encode(document)


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; whoever decodes the document says what is wrong with anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
