"""Which calls and torch functions of a recorded step the pattern of a pin names. No torch.

"*.attn"  "h.3.mlp#1"                 calls of modules
"*.attn/softmax*"  "/cross_entropy"   torch functions that the code of such calls, or of the model, calls
""  "GPT2LMHeadModel"                 the model itself
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Iterator

from ..._data.errors import PinError
from ..._data.step.tables import CallRecord
from ..._data.text.keys import split_function_pattern, split_key, split_pattern
from ..index.profile_index import Index

NEAREST = 3

ROOT = 0
"""The node of the model itself."""


def matched(index: Index, pattern: str) -> Iterator[int]:
    """Yield the nodes that a pattern names: calls, or torch functions.

    ``*`` stands for modules, and not for the model: that is meant by ``""``, and by its class where no module has that
    name.
    """
    calls = [call for call in index.call_nodes if _matches(index.nodes[call].record, pattern)]
    if not calls and pattern in ("", index.profile.model):
        calls = [ROOT]
    yield from calls
    around, function = split_function_pattern(pattern)
    if function and not calls:
        for f in index.functions:
            if _names_function(index.nodes[f].key, function) and _is_around(index.nodes[f].record, around):
                yield f


def named(index: Index, patterns: Iterable[str]) -> dict[int, str]:
    """Return the nodes that patterns name, each with the first pattern that does.

    Raises:
        PinError: a pattern names nothing.
    """
    found: dict[int, str] = {}
    for pattern in patterns:
        nodes = [*matched(index, pattern)]
        if not nodes:
            raise PinError(f"{_nothing(pattern)}{_nearest(index, pattern)}")
        for node in nodes:
            found.setdefault(node, pattern)
    return found


def _matches(call: CallRecord, pattern: str) -> bool:
    """Whether a pattern matches a module call. The root has no name, so no pattern matches it."""
    name, occurrence = split_pattern(pattern)
    named = bool(call.name) and fnmatch.fnmatchcase(call.name, name)
    return named and occurrence in ("", str(call.occurrence))


def _is_around(call: CallRecord, pattern: str) -> bool:
    """Whether a pattern names the call whose code calls a function."""
    return _matches(call, pattern) or (not call.name and (pattern == "#0" or fnmatch.fnmatchcase("", pattern)))


def _names_function(key: str, pattern: str) -> bool:
    """Whether a pattern names the function of a key."""
    name, _, occurrence = split_key(key)[1].rpartition("#")
    wanted, which = split_pattern(pattern)
    return fnmatch.fnmatchcase(name, wanted) and which in ("", occurrence)


def _nothing(pattern: str) -> str:
    what = "torch function" if split_function_pattern(pattern)[1] else "call"
    return f"no {what} of the step matches {pattern!r}"


def _nearest(index: Index, pattern: str) -> str:
    """Say which names are nearest. Names are also compared without their first parts, as ``*.mlp``."""
    around, function = split_function_pattern(pattern)
    labels: dict[str, str] = {}
    if function:
        functions = [index.nodes[f] for f in index.functions if not index.is_free(f)]
        within = [node for node in functions if _is_around(node.record, around)]
        for node in within or functions:
            name = split_key(node.key)[1].rpartition("#")[0]
            _label(labels, node.record.name, f"{node.record.name}/{name}", f"/{name}")
    else:
        for call in index.profile.calls[1:]:
            _label(labels, call.name, call.key if split_pattern(pattern)[1] else call.name)
    near = dict.fromkeys(labels[found] for found in difflib.get_close_matches(pattern, labels, n=NEAREST))
    return f"; the nearest names are {', '.join(map(repr, near))}" if near else "; none has a name like it"


def _label(labels: dict[str, str], name: str, label: str, after: str = "") -> None:
    """Note a label by itself, and by the patterns that leave out the first parts of its name."""
    labels.setdefault(label, label)
    parts = name.split(".")
    for first in range(1, len(parts)):
        labels.setdefault(".".join(["*", *parts[first:]]) + after, label)
