"""The units of a member that runs. Forward records them; what else the member calls runs plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._calls.found.around import Generator, States, given_among, never_draws, states_of
from ..._calls.names import function_name, numbered
from ..._calls.values import encode, not_simple, only_tensors, tensors
from ..._data.errors import NotApplicable
from ..._data.text.keys import key_of
from ..._torch import private
from .pack import Pack
from .thread import Function, MeetsUnits, OwnCode, Scope, thread
from .unit import UnitRun, Units, Wanted, stand_in

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of tensors that do not change what operators do. Other classes may compute anything."""

_LINEAR = torch.nn.Linear.forward


class UnitRecorder:
    """Runs the units of one member's forward, and notes them for its replay.

    Attributes:
        handle: the `Handle` of the model.
        planned: the units of its plan.
        units: those that ran.
    """

    __slots__ = ("_counts", "_entries", "_generators", "_pack", "_states", "handle", "planned", "units")

    def __init__(self, scope: Scope, pack: Pack, generators: list[Generator], states: States) -> None:
        self.handle, self.planned, self._counts = scope.handle, scope.table.units, scope.counts
        self.units = Units(self.handle, self.planned)
        self._entries = self.units.entries
        self._generators = generators  # of devices, and of the member's arguments
        self._states = dict(states)  # as they were last seen
        self._pack = pack

    def enter(self, name: str, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a patched module: as a unit, with its functions watched, or plain."""
        occurrence = numbered(self._counts, name)
        if self._pack.inputs is not None or name not in self.planned.inside or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        key = key_of(name, occurrence)
        if key not in self.planned.kept:
            self._entries.append(key)
        return called(self, key, forward, args, kwargs)

    def unit(self, key: str, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit. What it saves stays with autograd, except views of its arguments: the replay has those."""
        place = len(self._entries)
        self._entries.append(None)  # if it raises and the member goes on, the replay runs it again
        given, others = arguments_of(args, kwargs)
        versions = private.versions(given)
        generators = [*self._generators, *given_among(others)] if others else self._generators
        draws = not (never_draws(run) and _PLAIN.issuperset(map(type, given)))
        before = states_of(generators, self._states) if draws else []
        pack = self._pack
        start = len(pack.slots)
        sources = pack.sources = []
        pack.inputs = given
        try:
            result = run(*args, **kwargs)
        finally:
            pack.inputs = None
        if versions != private.versions(given):
            raise NotApplicable(f"{key} changes an argument in place, so a replay has to run it again. Recompute it.")
        if others:
            _refuse_other(tensors((args, kwargs)), given, key)
        after = states_of(generators, dict(before)) if draws else []
        self._states.update(after)
        kept = self.planned.kept[key]
        made = [result] if isinstance(result, Tensor) else []
        encoded = None if made else encode((result,), made)
        self._entries[place] = UnitRun(
            key=key,
            start=start,
            arguments=len(given),
            generators=len(generators),
            sources=tuple(sources),
            skipped=not kept,
            result=encoded,
            tensors=tuple([stand_in(tensor, given, kept=kept) for tensor in made]),
            random=_moved(before, after),
        )
        return result


def _refuse_other(now: list[Tensor], given: list[Tensor], key: str) -> None:
    """Refuse a unit whose arguments have other tensors than it was given."""
    if list(map(id, now)) != list(map(id, given)):
        raise NotApplicable(
            f"{key} changes a container that it was given, so a replay has to run it again. Recompute it."
        )


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Any]]:
    """Return the tensors among arguments; and, encoded, those that are neither tensors nor plain values."""
    every = (*args, *kwargs.values()) if kwargs else args
    given = only_tensors(every)
    if given is not None:
        return given, []
    given = []
    return given, not_simple(encode(every, given))


def _moved(before: States, after: States) -> list[tuple[int, Any]]:
    """Return the numbers of the generators that are in another state than before, and these states."""
    if before == after:
        return []
    return [(number, now[1]) for number, now in enumerate(after) if now != before[number]]


@private.never_compiled
def as_given(tensor: Tensor) -> Tensor:
    """Return the tensor that autograd saves, or reads, as it is."""
    return tensor


def run_alone(run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a skipped unit in a replay. Nothing that it saves is dropped, and no call inside it counts as a unit."""
    units, thread.units = thread.units, None
    try:
        private.push_hooks(as_given, as_given)
        return run(*args, **kwargs)
    finally:
        private.pop_hooks()
        thread.units = units


def called(meets: MeetsUnits, key: str, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call: as a unit, with the functions of its own code watched for units, or plain."""
    if key in meets.planned.kept:
        return meets.unit(key, forward, args, kwargs)
    wanted = meets.planned.functions.get(key)
    if wanted is None:
        return forward(*args, **kwargs)
    if (linear := _all_of_a_linear(forward, wanted, args, kwargs)) is not None:
        return meets.unit(*linear, {})
    watch, outer = FunctionWatch(meets.handle, wanted, meets.unit), thread.watch
    try:
        private.push_function_mode(watch)
        thread.watch = watch
        return forward(*args, **kwargs)
    finally:
        thread.watch = outer
        private.pop_function_mode()


def _all_of_a_linear(
    forward: Function, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Function, tuple[Any, ...]] | None:
    """Return key, function and arguments of the one function that a linear layer calls; None for any other call.

    Plans keep matrix products first. Without this, a function mode would have to be on to see each of them.
    """
    if wanted.only is None or kwargs or len(args) != 1 or getattr(forward, "__func__", None) is not _LINEAR:
        return None
    layer, function = forward.__self__, torch.nn.functional.linear  # type: ignore[attr-defined]
    if type(layer) is not torch.nn.Linear or function_name(function) not in wanted.keys:
        return None
    if private.transforms_active():  # as in `FunctionWatch`
        return None
    return wanted.only, function, (*args, layer.weight, layer.bias)


class FunctionWatch(OwnCode):
    """Sees the torch functions that one call's own code calls: outermost ones only, and none inside its children.

    Every function passes through here, and most are not wanted. So whatever can be known before is in the table.

    Args:
        handle: the `Handle` of the model.
        wanted: functions that are looked for.
        run: runs a wanted function, given its key, itself, and its arguments.
    """

    def __init__(
        self, handle: object, wanted: Wanted, run: Callable[[str, Function, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        super().__init__(handle)
        self._keys, self._left = wanted.keys, wanted.count
        self._run = run
        self._counts: dict[str, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if thread.watch is self and self._left:  # else a child is running, or all wanted functions have run
            name = function_name(func)
            keys = self._keys.get(name)
            if keys is not None and not private.transforms_active():  # calls by a transform are not counted
                key = keys.get(numbered(self._counts, name))
                if key is not None:
                    self._left -= 1
                    return self._run(key, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)
