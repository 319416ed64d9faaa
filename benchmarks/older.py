"""Profiles of 8cfb884, which `make old` installs, in the format of this checkout: nothing else still reads them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec

from autockpt import Profile
from autockpt._data import files

NOT_TOLD = "was recorded by a version of autockpt that does not tell whether it can run again by itself"


def read(path: Path) -> Profile:
    """Read a profile of the format `autockpt.profile/2`."""
    data = path.read_bytes()
    old = msgspec.json.decode(gzip.decompress(data) if data.startswith(files.GZIP_MAGIC) else data, type=dict[str, Any])
    return files.decode(msgspec.json.encode(modernised(old)), Profile, source=str(path))


def modernised(old: dict[str, Any]) -> dict[str, Any]:
    """Return a profile of version 2 as version 3 has it.

    Refusals are one table, operators have the ticks of the functions that ran them, and the host's seconds are gone.
    """
    new = {name: value for name, value in old.items() if not name.endswith("_host_seconds") and name != "times"}
    calls, functions, ops = ([*old["calls"]], {**old["functions"]}, {**old["ops"]})
    refusals = [["call", i, call["refused"]] for i, call in enumerate(calls) if call.get("refused")]
    count = len(functions["call"])
    for what, column, missing in (("result", "refused", ""), ("function", "unrepeatable", NOT_TOLD)):
        reasons = functions.pop(column, []) or [missing] * count
        refusals += [[what, i, reason] for i, reason in enumerate(reasons) if reason]
    functions.setdefault("arguments", [[]] * count)
    for column, tick in (("start", "enter"), ("stop", "exit")):
        ops[column] = [
            calls[call][tick] if function < 0 else functions[tick][function]
            for function, call in zip(ops["function"], ops["call"], strict=True)
        ]
    return new | {
        "schema": "autockpt.profile/3",
        "mode": "fake" if old["mode"] == "fake" else "measured",
        "calls": [{name: value for name, value in call.items() if name != "refused"} for call in calls],
        "functions": functions,
        "ops": ops,
        "refusals": refusals,
    }
