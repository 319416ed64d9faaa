"""Whether two profiles are of one structure: everything in them equal but bytes and seconds. No torch."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from ..._data.profile import Profile

FREE = frozenset({"recorded", "notes", "optimizer", "signature"})
"""What differs besides: when it was recorded, what was noted, words on the optimizer, and signatures, which are made of
shapes."""

ALIKE = ("model", "mode", "device", "torch_version")

HELD = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
"""Static bytes that no size of batch changes."""


def is_bytes(name: str) -> bool:
    """Whether a field of a profile counts bytes, by its name."""
    return name.endswith("bytes")


def is_seconds(name: str) -> bool:
    """Whether a field of a profile counts seconds, by its name."""
    return name.endswith("seconds")


def same_structure(first: Profile, second: Profile) -> str:
    """Say where two profiles part first.

    Args:
        first: the profile of a model at one size of batch.
        second: that of the same model at another.

    Returns:
        Empty where only bytes and seconds differ: the same calls, functions, operators, tensors and saves in the same
        order at the same ticks. Else the first difference in words.

    Example:
        >>> import torch, autockpt
        >>> from autockpt._run.growth import same_structure
        >>> layers = [torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)]
        >>> two, three = (autockpt.profile(torch.nn.Sequential(*layers[:n]), torch.randn(4, 8)) for n in (2, 3))
        >>> same_structure(two, two), same_structure(two, three)
        ('', 'parameter_bytes are 288 in one and 576 in the other')
    """
    for name in ALIKE:
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            return f"{name} is {one!r} in one and {other!r} in the other"
    for name in HELD:
        one, other = getattr(first.static, name), getattr(second.static, name)
        if one != other:
            return f"{name} are {one:,} in one and {other:,} in the other"
    keys = ([call.key for call in profile.calls] for profile in (first, second))
    for number, (one, other) in enumerate(zip_longest(*keys)):
        if one != other:
            return f"call {number} is {_named(one)} in one and {_named(other)} in the other"
    return _clocks(first, second) or _parts("profile", first, second)


def _named(key: str | None) -> str:
    return "none" if key is None else repr(key)


def _clocks(first: Profile, second: Profile) -> str:
    """Say at which tick two clocks part."""
    one, other = _ticks(first), _ticks(second)
    tick = next((tick for tick in sorted({*one, *other}) if one.get(tick) != other.get(tick)), None)
    if tick is None:
        return ""
    inside = [call.key for call in first.calls if call.enter <= tick < call.exit]
    where = f"in the forward of {inside[-1]!r}" if inside else "outside the forward of any call"
    nothing = "nothing that lasts"
    return (
        f"at tick {tick}, {where}, stands {one.get(tick, nothing)} in one and {other.get(tick, nothing)} in the other"
    )


def _ticks(profile: Profile) -> dict[int, str]:
    """What stands at each tick, in words."""
    calls, functions, saves = profile.calls, profile.functions, profile.saves
    found = dict.fromkeys(profile.tensors.birth, "the birth of a tensor")
    found |= {call.enter: f"the begin of {call.key!r}" for call in calls}
    found |= {call.exit: f"the end of {call.key!r}" for call in calls}
    found |= {tick: f"the begin of {functions.key(i)!r}" for i, tick in enumerate(functions.enter)}
    found |= {tick: f"the end of {functions.key(i)!r}" for i, tick in enumerate(functions.exit)}
    found |= dict.fromkeys(saves.pack, "a save")
    found |= dict.fromkeys(saves.unpack, "the reading of a save")
    found |= {profile.forward_ticks: "the end of forward", profile.ticks: "the end of the step"}
    return found


def _parts(where: str, first: Any, second: Any) -> str:
    """Say where two parts of profiles differ, leaving out what may."""
    if isinstance(first, msgspec.Struct):
        for name in first.__struct_fields__:
            # A mapping of bytes has keys that count.
            one, other = getattr(first, name), getattr(second, name)
            if name in FREE or ((is_bytes(name) or is_seconds(name)) and not isinstance(one, dict)):
                continue
            if said := _parts(f"{where}.{name}", one, other):
                return said
    elif isinstance(first, dict):
        if first.keys() != second.keys():
            return f"{where} is about {sorted(first)} in one and {sorted(second)} in the other"
    elif isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            if said := _parts(f"{where}[{number}]", one, other):
                return said
    elif first != second:
        return f"{where} is {first!r} in one and {second!r} in the other"
    return ""
