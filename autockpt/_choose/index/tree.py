"""The calls of a profile as one tree, whose leaves are torch functions. No torch.

0  #0                          the root; a subtree is [node, stop), numbered in forward order
1  ├─ h.0#0                    a module call
2  │  ├─ h.0.fc#0
3  │  │  └─ h.0.fc#0/linear#0  a torch function: it belongs to the call whose own code calls it
4  │  └─ h.0#0/gelu#0
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..._data.profile import Profile
from ..._data.step.tables import ArgumentRecord, CallRecord


class Given(NamedTuple):
    """One argument of a call; see `ArgumentRecord`.

    Attributes:
        tensor: index of the tensor, -1 for one that is older than the step.
        mutated: whether it was changed in place after the call began.
        sources: the nodes that returned this very object, unchanged since.
        graph: whether gradients flow through it; also True if that is not known.
    """

    tensor: int
    mutated: bool
    sources: tuple[int, ...]
    graph: bool


class Node(NamedTuple):
    """One call: of a module, or of a torch function by a module's own code.

    Attributes:
        key: as plans write it.
        parent: node of the call whose code makes it; -1 for the root.
        stop: one past the last node of its subtree.
        enter: tick at which it began.
        exit: tick at which it ended.
        arguments: what came in, parameters and buffers left out.
        outputs: tensors of this step that went out.
        draws: whether the state of a random generator changed.
        record: the module call; for a function, that of its caller.
        function: its row in the table of functions; -1 for a module call.
    """

    key: str
    parent: int
    stop: int
    enter: int
    exit: int
    arguments: tuple[Given, ...]
    outputs: tuple[int, ...]
    draws: bool
    record: CallRecord
    function: int = -1


def number_calls(profile: Profile) -> tuple[list[int], list[int]]:
    """Return the node of each call, and of each torch function. Both tables are sorted by when their rows began."""
    entered, begun = [call.enter for call in profile.calls], profile.functions.enter
    calls = [i + bisect.bisect_left(begun, enter) for i, enter in enumerate(entered)]
    return calls, [f + bisect.bisect_right(entered, enter) for f, enter in enumerate(begun)]


def make_tree(profile: Profile, call_nodes: list[int], function_nodes: list[int]) -> list[Node]:
    """Return calls and torch functions as nodes, in the order of their numbers."""
    calls, functions = profile.calls, profile.functions

    def given(arguments: Iterable[ArgumentRecord]) -> tuple[Given, ...]:
        return tuple([Given(each.tensor, each.mutated, sources(each), each.graph is not False) for each in arguments])

    def sources(argument: ArgumentRecord) -> tuple[int, ...]:
        if not (argument.sources or argument.functions):
            return ()
        return (*[call_nodes[c] for c in argument.sources], *[function_nodes[f] for f in argument.functions])

    nodes: dict[int, Node] = {}
    for number, call in zip(call_nodes, calls, strict=True):
        parent = call_nodes[call.parent] if call.parent >= 0 else -1
        stop = call.stop + bisect.bisect_left(functions.enter, call.exit)
        came, gone = given(call.arguments), call.outputs
        nodes[number] = Node(call.key, parent, stop, call.enter, call.exit, came, gone, call.draws, call)
    for f, number in enumerate(function_nodes):
        key, caller = f"{calls[functions.call[f]].key}/{functions.key(f)}", functions.call[f]
        enter, leave, came, gone = (
            functions.enter[f],
            functions.exit[f],
            given(functions.arguments[f]),
            functions.makes[f],
        )
        draws, record = functions.draws[f], calls[caller]
        nodes[number] = Node(key, call_nodes[caller], number + 1, enter, leave, came, gone, draws, record, f)
    return [nodes[number] for number in range(len(nodes))]


def seconds_of(profile: Profile, nodes: Sequence[Node]) -> list[float]:
    """Return forward seconds by node; for a module call, the median over identical calls."""
    by_signature: dict[str, list[float]] = defaultdict(list)
    for call in profile.calls:
        by_signature[call.signature].append(call.forward_seconds)
    medians = {signature: statistics.median(times) for signature, times in by_signature.items()}
    seconds = profile.functions.seconds
    return [seconds[node.function] if node.function >= 0 else medians[node.record.signature] for node in nodes]
