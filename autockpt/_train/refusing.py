"""Calls that turned out not to be repeatable, written into the profile that the next plan is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from .._data.keys import key_of, split_key
from .._data.profile import Profile
from .._data.tables import RefusedPart
from .._stash.shard import is_unlike

MOST_NAMED = 3
"""Calls that are named in one warning."""


def told(faults: Mapping[str, str]) -> str:
    """Say which calls are kept from now on, and why; or that no boundary waits in parts any more."""
    unlike = next((f"{key} {reason}" for key, reason in faults.items() if is_unlike(reason)), "")
    if unlike:
        return f"no boundary waits in parts from now on, and another plan is made: {unlike}"
    named = [f"{key} {reason}" for key, reason in list(faults.items())[:MOST_NAMED]]
    more = f"; and {len(faults) - MOST_NAMED} more, which the plan names" if len(faults) > MOST_NAMED else ""
    return f"calls that no replay repeats are kept from now on, and another plan is made: {'; '.join(named)}{more}"


def refusing(profile: Profile, faults: Mapping[str, str]) -> Profile:
    """Return a profile that refuses some calls, and those around them, whose replay would run them too.

    Where two of structurally identical calls are at fault, all are refused: the next plan would turn to the others.

    Args:
        profile: of the step.
        faults: keys of calls, with the reasons. Those that the step does not have count for nothing, nor do those whose
            boundary was to wait in parts and was not alike on all ranks: a plan without parts replays them.
    """
    faults = {key: reason for key, reason in faults.items() if not is_unlike(reason)}
    if not faults:
        return profile
    calls, functions = profile.calls, profile.functions
    numbers = {call.key: number for number, call in enumerate(calls)}
    at_fault = {key: numbers[caller] for key in faults if (caller := split_key(key)[0]) in numbers}
    places = zip(functions.call, functions.name, functions.occurrence, strict=True)
    functions_by_key = {(call, key_of(name, n)): number for number, (call, name, n) in enumerate(places)}
    times = Counter((calls[call].signature, split_key(key)[1]) for key, call in at_fault.items())
    refused: dict[int, str] = {}
    parts: dict[int, RefusedPart] = {}
    for key, call in at_fault.items():
        function = split_key(key)[1]
        several = times[calls[call].signature, function] > 1
        for number, other in enumerate(calls):
            if number != call and not (several and other.signature == calls[call].signature):
                continue
            if (number, function) in functions_by_key:
                index = functions_by_key[number, function]
                parts[index] = RefusedPart("function", index, faults[key])
            while number >= 0:
                refused.setdefault(number, faults[key])
                number = calls[number].parent
    known = profile.refused("call")
    new = (RefusedPart("call", number, reason) for number, reason in refused.items() if number not in known)
    return msgspec.structs.replace(profile, refusals=(*profile.refusals, *parts.values(), *new))
