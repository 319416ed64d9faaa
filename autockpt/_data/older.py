"""Reads what earlier versions wrote into plans and profiles, and this one does without."""

from __future__ import annotations

from typing import Any

import msgspec

RUNS_AGAIN = (
    "units in {calls} were remade by an earlier version of autockpt; these calls run again as a whole instead. "
    "Results stay exact; peak and cost are not the predicted ones. Solve the profile again for a plan that is"
)

NOT_TOLD = "was recorded by a version of autockpt that does not tell whether it can run again by itself"


def modernise(data: bytes, schema: str) -> bytes:
    """Return a document's JSON as this version writes it.

    Args:
        data: the document.
        schema: its own. Those of profiles are read from version 2 on.

    Returns:
        The document. In a plan, segments whose dropouts were remade from their noise (``remake``) keep and skip
        nothing: without the remade products their other units may lack what they read. A note says so.
    """
    if schema == "autockpt.profile/2":
        return msgspec.json.encode(_profile(msgspec.json.decode(data, type=dict[str, Any])))
    if b'"remake"' not in data and b'"profile_mode"' not in data:
        return data
    document = msgspec.json.decode(data, type=dict[str, Any])
    for plan in (document, *_objects(document.get("plans"))):
        if plan.get("profile_mode") in ("real", "forward"):
            plan["profile_mode"] = "measured"
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


def _profile(old: dict[str, Any]) -> dict[str, Any]:
    """Return a profile of version 2 as this version writes it.

    Refusals are one table, operators have the ticks of the functions that ran them, and the host's seconds are gone.
    """
    new = {name: value for name, value in old.items() if not name.endswith("_host_seconds") and name != "times"}
    new["schema"] = "autockpt.profile/3"
    new["mode"] = "fake" if old.get("mode") == "fake" else "measured"
    calls, functions, ops = _objects(old.get("calls")), _object(old.get("functions")), _object(old.get("ops"))
    refusals = [["call", i, reason] for i, call in enumerate(calls) if (reason := call.pop("refused", ""))]
    count = len(_list(functions.get("call")))
    for what, column, missing in (("result", "refused", ""), ("function", "unrepeatable", NOT_TOLD)):
        reasons = _list(functions.pop(column, [])) or [missing] * count
        refusals += [[what, i, reason] for i, reason in enumerate(reasons) if reason]
    new["refusals"] = refusals
    functions.setdefault("arguments", [[]] * count)
    for column, call_tick, function_tick in (("start", "enter", "enter"), ("stop", "exit", "exit")):
        ticks = _list(functions.get(function_tick))
        ops[column] = [
            ticks[f] if isinstance(f, int) and 0 <= f < len(ticks) else _object(_at(calls, call)).get(call_tick)
            for f, call in zip(_list(ops.get("function")), _list(ops.get("call")), strict=False)
        ]
    return new | {"functions": functions, "ops": ops}


def _at(values: list[Any], index: Any) -> Any:
    return values[index] if isinstance(index, int) and 0 <= index < len(values) else None


def _object(value: Any) -> dict[str, Any]:
    """Return an object as it is, and nothing of what should be one; whoever decodes the document says what is wrong."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    """Return a list as it is, and nothing of what should be one."""
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list."""
    return [each for each in _list(value) if isinstance(each, dict)]
