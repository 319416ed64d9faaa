"""What a function that recomputes finds as it begins: what it closes over, and all modules that its code reaches.

    function ─▶ its values    cells of its closure, arguments of partials, the object of a bound method
             └▶ its code      the function without them; `Contents` tells which modules and tensors that reaches

The values go with the arguments: a frame holds them as they are now, without graphs. So a loop may bind the names anew
before backward. A replay makes the function again, around the values of its forward.

Modules that are reached have no double, since globals and other functions refer to them too. A replay has them hold
what forward found, and puts back what they hold now when it ends.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._torch import private
from ..objects.contents import Contents
from ..objects.kinds import ATOMS
from ..values import encode, kept_whole
from .around import Undo
from .doubles import restore
from .held import Detached, check_unchanged
from .numbers import Numbers, take_back_numbers
from .state import ModuleState
from .tree import HOOKS, FoundModule

Function = Callable[..., Any]


class Opened(NamedTuple):
    """A function, apart from its values.

    Attributes:
        values: what it closes over, what it is bound to, and what a partial gives it.
        code: the innermost function without what it closes over; not to be called.
        build: makes the function again, around other values.
    """

    values: list[Any]
    code: object
    build: Callable[[Sequence[Any]], Function]


def opened(function: Any) -> Opened:
    """Take a function apart. What is called in C, and any other object that can be called, stays whole."""
    if isinstance(function, functools.partial):
        inner, names = opened(function.func), tuple(function.keywords)
        first, last = len(inner.values), len(inner.values) + len(function.args)
        return Opened(
            [*inner.values, *function.args, *function.keywords.values()],
            inner.code,
            lambda values: functools.partial(
                inner.build(values[:first]), *values[first:last], **dict(zip(names, values[last:], strict=True))
            ),
        )
    if isinstance(function, types.MethodType):
        bound = opened(function.__func__)
        return Opened(
            [function.__self__, *bound.values],
            bound.code,
            lambda values: types.MethodType(bound.build(values[1:]), values[0]),
        )
    if isinstance(function, types.FunctionType) and function.__closure__:
        try:
            values = [cell.cell_contents for cell in function.__closure__]
        except ValueError:  # a cell is still empty
            return Opened([], function, lambda _: function)
        # The function itself is not held: its cells may hold later results, whose graph leads to the frame.
        closing = _closing(function)
        code = closing([types.CellType() for _ in values])
        return Opened(values, code, lambda values: closing(map(types.CellType, values)))
    return Opened([], function, lambda _: function)


def _closing(function: types.FunctionType) -> Callable[..., types.FunctionType]:
    """Return what makes a function like this one, given the cells of its closure."""
    code, space, name, defaults = function.__code__, function.__globals__, function.__name__, function.__defaults__
    keyword_defaults, attributes = function.__kwdefaults__, dict(vars(function))

    def close(cells: Any) -> types.FunctionType:
        made = types.FunctionType(code, space, name, defaults, tuple(cells))
        made.__kwdefaults__ = keyword_defaults
        vars(made).update(attributes)
        return made

    return close


class ReachedState(ModuleState):
    """What a function finds in the modules and tensors that it reaches.

    Args:
        function: the function.
        args: its arguments by position.
        kwargs: its arguments by keyword.

    Attributes:
        modules: the modules that it reaches.
        taken: what goes before its arguments into a frame: its values, and the generators that it reaches.
        around: numbers, words and objects among its values, which tell it from other functions with its code; with the
            object that it is called of.
        whole: what is no plain value and no container of its values and arguments, such as modules and functions.
    """

    def __init__(self, function: Opened, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves: list[Tensor] = []
        self.whole = kept_whole(encode((function.values, args, kwargs), leaves))
        self._code, self._build = function.code, function.build
        # What is called may be an object, and a method's object is its first argument.
        self.around = tuple(map(_told_apart, (function.code, *function.values, *args[:1])))
        roots = {f"argument {number}": each for number, each in enumerate(self.whole)}
        found = Contents({"the function": function.code, **roots}, look=True)
        self.modules = list(dict.fromkeys(found.modules))
        # With a scripted one among them the function is kept: see `why_unrepeatable`.
        scripted = any(isinstance(each, torch.jit.ScriptModule) for each in self.modules)
        reached = [] if scripted else self.modules
        tensors = {id(each): each for _, each in found.tensors}
        for module in self.modules:
            for each in (*module._parameters.values(), *module._buffers.values()):
                tensors.pop(id(each), None)
        given: dict[int, Tensor] = {id(each): each for each in leaves if isinstance(each, nn.Parameter)}
        given |= {key: each for key, each in tensors.items() if each.grad_fn is None}
        # A graph is not held: it could lead to the frame.
        made = [each for each in tensors.values() if each.grad_fn is not None]
        self._made = [(private.version_counter(each), private.version(each)) for each in made]
        self.taken = (function.values, found.generators)
        self._numbers = Numbers(self.modules, found.objects)
        super().__init__(None, None, given.values(), reached=reached)

    def named(self, prefix: str) -> dict[str, nn.Module]:
        """Return the modules that it reaches by their classes, equal ones by a number too."""
        times: Counter[str] = Counter()
        named: dict[str, nn.Module] = {}
        for module in self._tree.modules:
            name = f"{prefix}: {type(module).__name__}" if prefix else f"the module {type(module).__name__}"
            named[f"{name} {times[name]}" if times[name] else name] = module
            times[name] += 1
        return named

    def code(self) -> object:
        """Return the function without what it closes over."""
        return self._code

    def again(self, taken: tuple[Sequence[Any], object], *args: Any, **kwargs: Any) -> Any:
        """Run the function around the values that forward found."""
        return self._build(taken[0])(*args, **kwargs)

    def replayed(self, forward: Function, undo: Undo) -> Function:
        """Have the modules hold what forward found; arguments and errors as for `ModuleState.replayed`."""
        self._check_versions()
        for counter, version in self._made:
            check_unchanged(counter, version, "a tensor")
        if changes := self._numbers.put():
            undo.append((take_back_numbers, (changes,)))
        tags, gone, now = self._tags, self._gone_hooks(), [tensor.requires_grad for tensor in self._tensors]
        if tags is not None:
            undo.append((tags.put, (tags.now(),)))
        if self._is_there(now, gone):
            undo.append((self.put_back, ()))
            return forward
        undo.append((_want, (self._tensors, now)))
        undo.append((restore, ([*map(_as_now, self._tree.modules)],)))
        _want(self._tensors, self._wants)
        if tags is not None:
            tags.put_found()
        values = self._copies([value for _, value in self._changing])
        instead = {id(tensor): value for (tensor, _), value in zip(self._changing, values, strict=True)}
        restore([_as_then(found, instead, gone) for found in self._tree.every()])
        return forward


class _Same:
    """An object, held weakly: equal to another one where both are of the same object."""

    __slots__ = ("_hash", "_of")

    def __init__(self, of: object) -> None:
        self._of, self._hash = weakref.ref(of), id(of)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Same) and self._of() is other._of() is not None)


def _told_apart(value: Any) -> object:
    """Return what tells a value from others: itself, or the object that it is; nothing for what a call makes anew."""
    if type(value) in ATOMS:
        return value
    if isinstance(value, (Tensor, nn.Module, types.FunctionType, type)):
        return None
    try:
        return _Same(value)
    except TypeError:  # a list or another container, or of an extension
        return None


def _as_now(module: nn.Module) -> FoundModule:
    """Return what a module holds now."""
    now = vars(module)
    parameters, buffers, children = now["_parameters"], now["_buffers"], now["_modules"]
    hooks = {name: dict(now[name]) for name in HOOKS}
    return FoundModule(module, now.copy(), parameters.copy(), buffers.copy(), children.copy(), hooks)


def _as_then(found: FoundModule, instead: dict[int, Tensor], gone: dict[str, dict[int, Any]]) -> FoundModule:
    """Return what a module is to hold in a replay: copies of buffers in place of those that forward changes."""
    module, contents, parameters, buffers, children, hooks = found
    contents = {name: each.leaf() if type(each) is Detached else each for name, each in contents.items()}
    buffers = {name: instead.get(id(each), each) for name, each in buffers.items()}
    hooks = {name: {**gone.get(name, {}), **hooks[name]} for name in HOOKS}
    return FoundModule(module, contents, parameters, buffers, children, hooks)


def _want(tensors: Sequence[Tensor], wants: Sequence[bool]) -> None:
    """Have tensors require gradients or not."""
    for tensor, want in zip(tensors, wants, strict=True):
        if tensor.requires_grad is not want:
            tensor.requires_grad_(want)
