"""The names of calls, and of torch functions that a call's own code calls: in plans and profiles, and for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from ...solvers.units import shown
from ..errors import PinError

CallKey = Annotated[str, msgspec.Meta(pattern=r"^[^#]*#[0-9]+$")]
"""``qualified.name#occurrence``; the root is ``#0``. Occurrences count within the root's call."""

UnitKey = Annotated[str, msgspec.Meta(pattern=r"^[^#/]*#[0-9]+(/[^#/]+#[0-9]+)?$")]
"""A call inside a segment, or a torch function that a call's own code calls: ``h.3.attn#0/linear#1``.

A function's occurrences are counted within that one call's own code, by the last part of the function's name."""

MEMBER = r"^[^#]*#[0-9]+(/[^#/]+#[0-9]+)?$"
MemberKey = Annotated[str, msgspec.Meta(pattern=MEMBER)]
"""A call, or a torch function that the code of the segment's parent calls: ``#0/cat#1``."""


def key_of(name: str, occurrence: int) -> str:
    """Return the key of a call: its name, and how many calls of that name were before it.

    Example:
        >>> from autockpt._data.text.keys import key_of
        >>> key_of("h.3.attn", 1)
        'h.3.attn#1'
    """
    return f"{name}#{occurrence}"


def split_key(key: str) -> tuple[str, str]:
    """Return the call in a key, and the torch function that its own code calls; empty where the call is meant.

    Example:
        >>> from autockpt._data.text.keys import split_key
        >>> split_key("h.3.attn#0/linear#1"), split_key("h.3.attn#0")
        (('h.3.attn#0', 'linear#1'), ('h.3.attn#0', ''))
    """
    name, _, rest = key.partition("#")  # names of modules may contain a slash
    occurrence, _, function = rest.partition("/")
    return f"{name}#{occurrence}", function


def name_of(call: str) -> str:
    """Return the qualified name in the key of a call of a module; empty for the root.

    Example:
        >>> from autockpt._data.text.keys import name_of
        >>> name_of("h.3.attn#0"), name_of("#0")
        ('h.3.attn', '')
    """
    return call.rpartition("#")[0]


def label(call: str) -> str:
    """Return the name of a call for people: the occurrence only if it is not the first; the root in words.

    Torch functions follow the call whose code calls them: ``encoder/cat#1``, or ``cat#1`` of the root.
    """
    call, function = split_key(call)
    name, _, occurrence = call.partition("#")
    if function:
        return f"{label(call)}/{function}" if name else function
    name = name or "the whole model"
    return name if occurrence == "0" else f"{name}#{occurrence}"


def patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    """Read patterns of calls as users write them: one, or several.

    Raises:
        PinError: one is no text.
    """
    several: Any = given  # users give whatever they like
    found = tuple(several) if isinstance(several, Iterable) and not isinstance(several, str) else (several,)
    for pattern in found:
        if not isinstance(pattern, str):
            raise PinError(f"a pin is a pattern of qualified names, such as '*.mlp', got {shown(pattern)}")
    return found


def split_pattern(pattern: str) -> tuple[str, str]:
    """Return the name in a pattern of calls, and the occurrence; empty for all of them.

    Example:
        >>> from autockpt._data.text.keys import split_pattern
        >>> split_pattern("*.attn#1"), split_pattern("*.attn")
        (('*.attn', '1'), ('*.attn', ''))
    """
    name, sharp, occurrence = pattern.rpartition("#")
    return (name, occurrence) if sharp and occurrence.isdecimal() else (pattern, "")


def split_function_pattern(pattern: str) -> tuple[str, str]:
    """Return the pattern of calls in a pattern of torch functions, and that of functions; the latter empty for calls.

    Example:
        >>> from autockpt._data.text.keys import split_function_pattern
        >>> split_function_pattern("*.attn#0/softmax*"), split_function_pattern("*.attn")
        (('*.attn#0', 'softmax*'), ('*.attn', ''))
    """
    call, slash, function = pattern.rpartition("/")
    return (call, function) if slash and function else (pattern, "")
