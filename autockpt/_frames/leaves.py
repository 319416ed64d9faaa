"""Leaves: what a member runs inside it and its replay does not run again, because they are kept or skipped.

    forward   norm ─▶ [up] ─▶ gelu ─▶ [down] ─▶ +        [up] kept: its result stays
    replay    norm    stays ─▶ gelu   hollow              [down] skipped: nothing needed reads its result
               └────────▶ what [up] saved of its argument

They come in the same order in forward and in the replay, so each call in forward adds an entry (a leaf that ran, or
the key of any other call), and each in the replay takes the next. What a leaf saves stays with autograd, as in a plain
step, but for its own arguments: those the replay makes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import _torch_private
from .._calls.names import function_name
from .._calls.values import decode, encode, not_simple, only_tensors
from .._data.errors import NotApplicable
from .around import Generator, States, given_among, never_draws, states_of
from .hollow import Shape
from .saved import Detached, Tags, reads_alike, tagged, tags_of
from .thread import Handle, Scope, Wanted, thread

if TYPE_CHECKING:
    from .recording import Pack
    from .replay import Replay

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Tensors that leave operators as they are; other classes may compute anything."""

_LINEAR = torch.nn.Linear.forward

Function: TypeAlias = Callable[..., Any]

Leaves: TypeAlias = "Recorded | Replay"
"""What meets the leaves of a member that runs: in forward, and later."""


def source_of(tensor: Tensor, storage: int, inputs: Sequence[Tensor]) -> tuple[int, int] | None:
    """Return which argument a tensor is a view of, and how far behind its first element; None if a replay makes none.

    Args:
        tensor: what a leaf saves.
        storage: its storage's key.
        inputs: the leaf's arguments.
    """
    for number, whole in enumerate(inputs):
        if whole is tensor:  # as nearly always
            return (number, 0) if whole.layout is torch.strided else None
    for number, whole in reversed([*enumerate(inputs)]):
        if _torch_private.storage_key(whole) == storage:
            if whole.layout is not torch.strided or not reads_alike(tensor, whole):
                return None
            return number, int(tensor.storage_offset()) - int(whole.storage_offset())
    return None


class Argument(NamedTuple):
    """A tensor of a leaf's result that is one of its arguments: the number of that, and what was on it."""

    number: int
    tags: Tags


@dataclass(slots=True, kw_only=True, eq=False)
class Leaf:
    """One run of a leaf, with what a replay hands out in its place.

    Attributes:
        key: the leaf's key.
        start: number of slots in the frame when it began.
        arguments: how many tensors it was given.
        generators: how many there were, those of the member first and then those that it was given.
        sources: for each slot since, the argument that it is a view of, and how far behind its first element
            it begins.
        skipped: whether its result cannot be read.
        result: its result, encoded; None where it is one tensor.
        tensors: what stand for the tensors in the result.
        random: the generators that it moved, by number since a replay may make its own, with their states after it.
    """

    key: str
    start: int
    arguments: int
    generators: int
    sources: Sequence[tuple[int, int]]
    skipped: bool
    result: list[Any] | None
    tensors: Sequence[Detached | Shape | Argument]
    random: Sequence[tuple[int, Any]]

    def hand_out(self, arguments: list[Tensor]) -> Any:
        """Return what the leaf returned in forward, for a replay that gave it `arguments`."""
        if self.result is None:
            return _handed(self.tensors[0], arguments)
        return decode(self.result, [_handed(tensor, arguments) for tensor in self.tensors])[0]


Entry: TypeAlias = Leaf | str | None
"""A leaf; or the key of any other call of a patched module; None for a leaf that raised."""


class Recorded:
    """The leaves of one member's forward.

    Attributes:
        handle: that of the model.
        table: its table.
        entries: what a replay finds, in order.
    """

    __slots__ = ("_counts", "_generators", "_pack", "entries", "handle", "table")

    def __init__(self, scope: Scope, pack: Pack, generators: list[Generator]) -> None:
        self.handle, self.table, self._counts = scope.handle, scope.table, scope.counts
        self.entries: list[Entry] = []
        self._generators = generators  # of devices, and of the member's arguments
        self._pack = pack

    def enter(self, name: str, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a patched module: as a leaf, with its functions watched, or plain."""
        occurrence = self._counts.get(name, 0)
        self._counts[name] = occurrence + 1
        if self._pack.inputs is not None or name not in self.table.inside or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        key = f"{name}#{occurrence}"
        if key not in self.table.leaves:
            self.entries.append(key)
        return called(self, key, forward, args, kwargs)

    def leaf(self, key: str, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a leaf; what it saves stays with autograd, but for what the replay has of it."""
        place = len(self.entries)
        self.entries.append(None)  # where it raises and the member goes on, so will the replay
        leaves, others = arguments_of(args, kwargs)
        versions = _torch_private.versions(leaves)
        generators = [*self._generators, *given_among(others)] if others else self._generators
        draws = not (never_draws(run) and _PLAIN.issuperset(map(type, leaves)))
        before = states_of(generators) if draws else []
        pack = self._pack
        start = len(pack.slots)
        sources = pack.sources = []
        pack.inputs = leaves
        try:
            result = run(*args, **kwargs)
        finally:
            pack.inputs = None
        if versions != _torch_private.versions(leaves):
            raise NotApplicable(f"{key} changes an argument in place, so that only running it again can. Recompute it.")
        if others:
            now: list[Tensor] = []
            encode((*args, *kwargs.values()), now)
            if list(map(id, now)) != list(map(id, leaves)):
                raise NotApplicable(
                    f"{key} changes a container that it was given, which only running it does. Recompute it."
                )
        kept = self.table.leaves[key]
        made = [result] if isinstance(result, Tensor) else []
        encoded = None if made else encode((result,), made)
        self.entries[place] = Leaf(
            key=key,
            start=start,
            arguments=len(leaves),
            generators=len(generators),
            sources=tuple(sources),
            skipped=not kept,
            result=encoded,
            tensors=tuple([_stand_in(tensor, leaves, kept=kept) for tensor in made]),
            random=() if not draws else _moved(before, states_of(generators)),
        )
        return result


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Any]]:
    """Return the tensors among arguments, and what of them is neither a tensor nor a plain value, encoded."""
    given = (*args, *kwargs.values()) if kwargs else args
    leaves = only_tensors(given)
    if leaves is not None:
        return leaves, []
    leaves = []
    return leaves, not_simple(encode(given, leaves))


def _moved(before: States, after: States) -> list[tuple[int, Any]]:
    """Return the numbers of the generators that are in another state than before, with that."""
    return [(number, now[1]) for number, now in enumerate(after) if now != before[number]]


def _stand_in(tensor: Tensor, arguments: list[Tensor], *, kept: bool) -> Detached | Shape | Argument:
    """Return what stands for a tensor of a leaf's result, which was given `arguments`."""
    for number, argument in enumerate(arguments):
        if argument is tensor:
            return Argument(number, tags_of(tensor))
    return Detached(tensor, "the result of a kept call") if kept else Shape(tensor)


def _handed(stand_in: Detached | Shape | Argument, arguments: list[Tensor]) -> Tensor:
    """Return a tensor of a leaf's result for a replay that gave it `arguments`."""
    if isinstance(stand_in, Argument):
        return tagged(arguments[stand_in.number], stand_in.tags)
    return stand_in.leaf()


def called(leaves: Leaves, key: str, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call: as a leaf, with the leaves among the functions of its own code, or plain."""
    if key in leaves.table.leaves:
        return leaves.leaf(key, forward, args, kwargs)
    wanted = leaves.table.functions.get(key)
    if wanted is None:
        return forward(*args, **kwargs)
    if (linear := _all_of_a_linear(forward, wanted, args, kwargs)) is not None:
        return leaves.leaf(*linear, {})
    watch, outer = FunctionWatch(leaves.handle, wanted, leaves.leaf), thread.watch
    try:
        _torch_private.push_function_mode(watch)
        thread.watch = watch
        return forward(*args, **kwargs)
    finally:
        thread.watch = outer
        _torch_private.pop_function_mode()


def _all_of_a_linear(
    forward: Function, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Function, tuple[Any, ...]] | None:
    """Return the key of the function that a linear layer's own code is, that and its arguments; None for other calls.

    Products are what plans keep first, and otherwise a mode would have to be on to see one.
    """
    if wanted.only is None or kwargs or len(args) != 1 or getattr(forward, "__func__", None) is not _LINEAR:
        return None
    layer, function = forward.__self__, torch.nn.functional.linear  # type: ignore[attr-defined]
    if type(layer) is not torch.nn.Linear or function_name(function) not in wanted.keys:
        return None
    if _torch_private.transforms_active():  # as for those that a mode sees
        return None
    return wanted.only, function, (*args, layer.weight, layer.bias)


class FunctionWatch(TorchFunctionMode):
    """Sees the torch functions that one call's own code calls: outermost ones only, and none inside its children.

    Every function goes by here, most of them for nothing, so what can be known before is in the table.

    Args:
        handle: that of the model.
        wanted: functions that are looked for.
        run: runs those: is given the key, the function, and its arguments.

    Attributes:
        handle: the same.
    """

    def __init__(
        self, handle: Handle, wanted: Wanted, run: Callable[[str, Function, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        super().__init__()
        self.handle = handle
        self._keys, self._left = wanted.keys, wanted.count
        self._run = run
        self._counts: dict[str, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if thread.watch is self and self._left:  # else a child is running, or all have been
            name = function_name(func)
            keys = self._keys.get(name)
            if keys is not None and not _torch_private.transforms_active():  # those a transform calls count for nobody
                occurrence = self._counts.get(name, 0)
                self._counts[name] = occurrence + 1
                key = keys.get(occurrence)
                if key is not None:
                    self._left -= 1
                    return self._run(key, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)
