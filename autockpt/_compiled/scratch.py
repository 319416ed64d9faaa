"""What kernels allocate for themselves while they run: measured once an operator and shape, on zeros."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from .._data.errors import ProfilingError
from .._torch.devices import device_of
from .._torch.devices.tape import Event
from .._torch.private import compiling as private


def scratch_bytes(nodes: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """Return for each operator what it holds at most while it runs, beside what it reads and returns, in bytes.

    Views are taken to hold nothing, as are operators that cannot run on zeros. Where another profiler runs, nothing can
    be measured, and all are taken to hold nothing. Generators are put back.
    """
    alike: dict[object, list[fx.Node]] = {}
    for node in nodes:
        if _may_hold(node):
            alike.setdefault(_look(node), []).append(node)
    found: dict[fx.Node, int] = {}
    by_device: dict[torch.device, list[list[fx.Node]]] = {}
    for group in alike.values():
        by_device.setdefault(_tensors(group[0])[0].device, []).append(group)
    for device, groups in by_device.items():
        for group, size in zip(groups, _measured(device, [group[0] for group in groups]), strict=True):
            found |= dict.fromkeys(group, size)
    return found


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    values = [each.meta.get("val") for each in node.all_input_nodes]
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _may_hold(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target.is_view:
        return False
    return not target._schema.is_mutable and bool(_tensors(node))


def _look(node: fx.Node) -> object:
    """Return what two operators share that hold as much."""

    def look(value: Any) -> object:
        if isinstance(value, fx.Node):
            return tree_map(look, value.meta.get("val"))
        if isinstance(value, torch.Tensor):
            return f"{value.dtype} {[*map(private.hint, value.shape)]} {[*map(private.hint, value.stride())]}"
        return value

    return repr((node.target, tree_map(look, node.args), tree_map(look, dict(node.kwargs))))


def _real(value: Any) -> Any:
    """Return zeros where a graph has a fake tensor, and the number where it has a symbol."""
    if isinstance(value, torch.Tensor):
        shape, strides = [*map(private.hint, value.shape)], [*map(private.hint, value.stride())]
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).zero_()
    return private.hint(value) if isinstance(value, torch.SymInt) else value


def _measured(device: torch.device, nodes: list[fx.Node]) -> list[int]:
    """Run operators once, one after the other, and return what each holds at most."""
    tape = device_of(device).tape()
    ran: list[tuple[int, int] | None] = []
    try:
        # A draw, too, may hold something: a bool of a CPU is drawn as an integer first.
        with torch.random.fork_rng([] if device.type == "cpu" else [device]), tape, torch.no_grad():
            for node in nodes:
                given = fx.map_arg((node.args, dict(node.kwargs)), lambda each: tree_map(_real, each.meta.get("val")))
                args, kwargs = tree_map(_real, given)
                begin = tape.mark()
                try:
                    output = node.target(*args, **kwargs)  # type: ignore[operator]
                except (RuntimeError, ValueError, TypeError, IndexError):
                    ran.append(None)
                    continue
                ran.append((begin, tape.mark()))
                del output, args, kwargs, given
        events = tape.events()
    except ProfilingError:
        return [0] * len(nodes)
    place = {event.key: i for i, event in enumerate(events) if event.kind == "mark"}
    return [0 if each is None else _most(events[place[each[0]] : place[each[1]]]) for each in ran]


def _most(events: list[Event]) -> int:
    """Return by how much the highest level of a stretch of a tape is above its last."""
    level = top = 0
    live: dict[int, int] = {}
    for event in events:
        if event.kind == "alloc":
            live[event.key] = event.bytes
            level += event.bytes
        elif event.kind == "free":
            level -= live.pop(event.key, 0)
        top = max(top, level)
    return top - level
