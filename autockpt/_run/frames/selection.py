"""Which units run inside a selective member: they come in the same order in its forward and in its replay.

forward   attn ─▶ attn/linear#0 ─▶ …      each adds an entry: a unit that ran, functions to watch for, or nothing
replay    attn ─▶ attn/linear#0 ─▶ …      each takes the next entry: handed out, watched, or run like any code
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from ... import _torch_private
from ..._calls.names import function_name
from ..._calls.values import CONTAINERS, encode, not_simple
from ..._data.errors import NotApplicable
from .generators import States, given_among, states_of
from .thread import thread
from .units import Choice, Inputs, Unit

if TYPE_CHECKING:
    from .members import Handle
    from .patches import Patches
    from .recording import Pack

_OPERATORS = (types.BuiltinFunctionType, types.MethodDescriptorType)

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensors that leave operators as they are; other classes may compute anything."""

Function: TypeAlias = Callable[..., Any]
Entry: TypeAlias = Unit | Choice | None


class Selector(Protocol):
    """What decides about units while a selective member runs: a `Selection` in forward, the replay later."""

    @property
    def token(self) -> str | None:
        """The plan's token; None where nothing is selected."""

    def enter(self, handle: Handle, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a patched module inside the member, or hand out its result."""

    def unit(self, key: str, kept: bool, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit, or hand out its result."""


class Selection:
    """The units of one selective member's forward.

    Attributes:
        patches: those of the plan.
        token: theirs.
        entries: what a replay finds, in order.
        generators: those of devices and of the member's arguments.
    """

    __slots__ = ("_busy", "_counts", "_pack", "entries", "generators", "patches", "token")

    def __init__(self, patches: Patches, pack: Pack, before: States, counts: dict[str, int]) -> None:
        self.patches = patches
        self.token = patches.token
        self.entries: list[Entry] = []
        self._pack = pack
        self.generators = [generator for generator, _ in before]
        self._counts = counts
        self._busy = False

    def enter(self, handle: Handle, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a patched module: as a unit, with its functions watched, or plain."""
        occurrence = handle.count(self._counts)
        if self._busy or not handle.selects or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        key = f"{handle.name}#{occurrence}"
        kept = handle.units.get(occurrence)
        if kept is not None:
            return self.unit(key, kept, forward, args, kwargs)
        choice = handle.functions.get(occurrence)
        self.entries.append(choice)
        return forward(*args, **kwargs) if choice is None else watched(self, key, choice, forward, args, kwargs)

    def unit(self, key: str, kept: bool, run: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a unit; what it saves stays with autograd, but for what the replay has of it."""
        place = len(self.entries)
        self.entries.append(None)  # where it raises and the member goes on, so will the replay
        leaves: list[torch.Tensor] = []
        others = not_simple(encode((*args, *kwargs.values()) if kwargs else args, leaves))
        inputs = Inputs(leaves)
        versions = _torch_private.versions(leaves)
        generators = [*self.generators, *given_among(others)] if others else self.generators
        drawing = [] if never_draws(run) and all(type(leaf) in _PLAIN for leaf in leaves) else generators
        before = states_of(drawing)
        start = self._pack.n_slots
        self._busy, self._pack.inputs = True, inputs
        try:
            result = run(*args, **kwargs)
        finally:
            self._busy, self._pack.inputs = False, None
        if versions != _torch_private.versions(leaves):
            raise NotApplicable(f"{key} changes an argument in place, so that only running it again can. Recompute it.")
        if any(type(template) in CONTAINERS for template in others):
            now: list[torch.Tensor] = []
            encode((*args, *kwargs.values()), now)
            if len(now) != len(leaves) or not all(map(operator.is_, now, leaves)):
                raise NotApplicable(
                    f"{key} changes a container that it was given, which only running it does. Recompute it."
                )
        moved = [(number, state[1]) for number, state in enumerate(states_of(drawing)) if state != before[number]]
        unit = Unit(key, start, inputs, result, kept=kept, generators=len(generators), random=moved)
        self.entries[place] = unit
        return result


def own_code(key: str, choice: Choice, forward: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Run the forward of a member some of whose own functions are units."""
    assert thread.selector is not None
    return watched(thread.selector, key, choice, forward, args, kwargs)


def as_unit(key: str, kept: bool, function: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Run a torch function that is a member and nothing but a unit."""
    assert thread.selector is not None
    return thread.selector.unit(key, kept, function, args, kwargs)


def watched(
    selector: Selector, key: str, choice: Choice, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run `forward`, a call's own code, and make units of the functions in `choice` that it calls."""

    def run(numbered: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return selector.unit(f"{key}/{numbered}", choice[numbered], function, args, kwargs)

    return FunctionWatch(selector.token, choice, run).around(forward, args, kwargs)


class FunctionWatch(TorchFunctionMode):
    """Sees the torch functions that one call's own code calls: outermost ones only, and none inside its children.

    Args:
        token: of the plan.
        wanted: functions, as ``name#occurrence``.
        run: runs those: is given this name, the function, and its arguments.

    Attributes:
        token: the same.
    """

    def __init__(
        self,
        token: str | None,
        wanted: Collection[str],
        run: Callable[[str, Function, tuple[Any, ...], dict[str, Any]], Any],
    ) -> None:
        super().__init__()
        self.token = token
        self._wanted = wanted
        self._run = run
        self._names = {name.partition("#")[0] for name in wanted}
        self._counts: dict[str, int] = {}

    def around(self, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call's forward, watched."""
        outer, thread.watch = thread.watch, self
        try:
            with self:
                return forward(*args, **kwargs)
        finally:
            thread.watch = outer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if thread.watch is not self:  # a child is running
            return func(*args, **kwargs)
        name = function_name(func)
        if name not in self._names or _torch_private.transforms_active():  # those a transform calls count for nobody
            return func(*args, **kwargs)
        occurrence = self._counts.get(name, 0)
        self._counts[name] = occurrence + 1
        numbered = f"{name}#{occurrence}"
        return self._run(numbered, func, args, kwargs) if numbered in self._wanted else func(*args, **kwargs)


def never_draws(function: Function) -> bool:
    """Whether a torch function is an operator of torch's own of which no overload draws random numbers.

    Reading the states of generators, before and after, costs as much as a small operator.
    """
    # Python may do anything. A method of an object is not for the cache, which would keep the object.
    return isinstance(function, _OPERATORS) and not _is_bound(function) and _operator_never_draws(function)


def _is_bound(function: Function) -> bool:
    """Whether a function written in C is a tensor's or another object's, and not a class's or a module's."""
    return not isinstance(getattr(function, "__self__", None), (type, types.ModuleType, types.NoneType))


@functools.lru_cache(maxsize=4096)
def _operator_never_draws(function: Function) -> bool:
    packet = getattr(torch.ops.aten, function_name(function), None)
    overloads = getattr(packet, "overloads", None)
    if overloads is None:  # no operator has this name; `__eq__` is what any Python object has
        return False
    return not any(torch.Tag.nondeterministic_seeded in getattr(packet, name).tags for name in overloads())
