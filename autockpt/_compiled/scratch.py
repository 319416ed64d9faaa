"""What kernels allocate for themselves while they run: measured once an operator and shape, on zeros."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from .._data.errors import ProfilingError
from .._torch.devices import device_of
from .._torch.devices.tape import Event
from .._torch.private import compiling as private


@dataclass(frozen=True, slots=True)
class Look:
    """What a tensor looks like: its shape, strides, type of elements and device."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Look:
        """Return the look of a tensor; of symbolic sizes the hints."""
        shape, strides = map(private.hint, tensor.shape), map(private.hint, tensor.stride())
        return cls((*shape,), (*strides,), tensor.dtype, tensor.device)

    def zeros(self) -> torch.Tensor:
        """Return zeros that look so."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).zero_()


Asked = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operator and what it is given, with looks in the place of tensors."""


def scratch_of_calls(calls: Sequence[Asked]) -> list[int]:
    """Return for each call of an operator what it holds at most while it runs, beside what it reads and returns.

    That is in bytes, and calls that look alike are run once; else it is as with `scratch_bytes`.
    """
    found: dict[str, int] = {}
    by_device: dict[torch.device, dict[str, Asked]] = {}
    for call in calls:
        looks = [each for each in tree_leaves(call[1:]) if isinstance(each, Look)]
        if looks and _holds(call[0], out=True) and not _packs(call[0], looks):
            by_device.setdefault(looks[0].device, {})[repr(call)] = call
    for device, alike in by_device.items():
        found |= zip(alike, _measured(device, [*alike.values()]), strict=True)
    return [found.get(repr(call), 0) for call in calls]


def looks_of(values: Any) -> Any:
    """Return values with looks in the place of tensors, and hints in that of symbolic sizes."""
    return tree_map(_look_of, values)


def _look_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Look.of(value)
    return private.hint(value) if isinstance(value, torch.SymInt) else value


def scratch_bytes(nodes: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """Return for each operator what it holds at most while it runs, beside what it reads and returns, in bytes.

    Views are taken to hold nothing, as are operators that cannot run on zeros. Where another profiler runs, nothing can
    be measured, and all are taken to hold nothing. Generators are put back.
    """
    asked = {node: _asked(node) for node in nodes if _may_hold(node)}
    return dict(zip(asked, scratch_of_calls([*asked.values()]), strict=True))


def _asked(node: fx.Node) -> Asked:
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta.get("val"))
    return node.target, *looks_of((args, kwargs))


def _may_hold(node: fx.Node) -> bool:
    return _holds(node.target) and any(
        isinstance(each, torch.Tensor) for given in node.all_input_nodes for each in tree_leaves(given.meta.get("val"))
    )


def _holds(target: Any, *, out: bool = False) -> bool:
    """Whether an operator may hold something, and can be run on zeros; with `out` also one that is given its result."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target.is_view:
        return False
    return not target._schema.is_mutable or (out and any(each.is_out for each in target._schema.arguments))


def _packs(target: Any, looks: Sequence[Look]) -> bool:
    """Whether an operator is a product that BLAS computes into its result, packing in memory that no allocator sees.

    To run all products of a large model on zeros takes longer than to read the rest of it.
    """
    plain = {torch.float32, torch.float64}.issuperset(each.dtype for each in looks)
    on_cpu = plain and all(each.device.type == "cpu" for each in looks)
    return on_cpu and target.overloadpacket in PRODUCTS and torch.get_float32_matmul_precision() == "highest"


PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
"""Products of matrices."""


def _real(value: Any) -> Any:
    return value.zeros() if isinstance(value, Look) else value


def _measured(device: torch.device, calls: list[Asked]) -> list[int]:
    """Run operators once, one after the other, and return what each holds at most."""
    tape = device_of(device).tape()
    ran: list[tuple[int, int] | None] = []
    try:
        # A draw, too, may hold something: a bool of a CPU is drawn as an integer first.
        with torch.random.fork_rng([] if device.type == "cpu" else [device]), tape, torch.no_grad():
            for target, *given in calls:
                args, kwargs = tree_map(_real, given)
                begin = tape.mark()
                try:
                    output = target(*args, **kwargs)
                except (RuntimeError, ValueError, TypeError, IndexError):
                    ran.append(None)
                    continue
                ran.append((begin, tape.mark()))
                del output, args, kwargs
        events = tape.events()
    except ProfilingError:
        return [0] * len(calls)
    place = {event.key: i for i, event in enumerate(events) if event.kind == "mark"}
    levels = [(0, 0) if each is None else highest(events[place[each[0]] : place[each[1]]]) for each in ran]
    return [top - last for top, last in levels]


def highest(events: Sequence[Event], extra: Iterable[int] = ()) -> tuple[int, int]:
    """Return the highest and the last level of a stretch of a tape, in bytes above the level where it begins.

    Args:
        events: the stretch. What is freed in it and was made before it counts nothing.
        extra: for each event, bytes that somebody holds for a moment before it; those left out are 0.
    """
    level = top = 0
    live: dict[int, int] = {}
    for event, moment in zip(events, chain(extra, repeat(0)), strict=False):
        top = max(top, level + moment)
        if event.kind == "alloc":
            live[event.key] = event.bytes
            level += event.bytes
        elif event.kind == "free":
            level -= live.pop(event.key, 0)
        top = max(top, level)
    return top, level
