"""A function that recomputes in backward, without a plan."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils.checkpoint import checkpoint

from ..._calls.found.reached import ReachedState, opened
from ..._calls.unrepeatable import why_unrepeatable
from ..._torch import private
from ..compare.checks import ReplayChecks
from ..compare.findings import Told
from ..frames.function import run_function
from ..frames.table import Handle, Table
from ..frames.thread import thread

P = ParamSpec("P")
R = TypeVar("R")

_LAZY = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)

MOST_KNOWN = 32
"""So many functions with one code are told apart."""

_OTHERS = ((), ())

TOLD = Told(
    "%s is kept from now on, since it %s. autockpt.recompute saves no memory for it.",
    "The function is kept from the next forward on; take autockpt.recompute off it.",
)


def recompute(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function run again in backward, so that what it saves for backward is not kept.

    Between forward and backward only its tensor arguments and its results are held. Gradients, buffers and random
    numbers are bit for bit those of the plain call. It needs no model under `apply`. Inside one, it is counted with the
    call around it, and plans choose nothing inside. It may be used as a decorator.

    The first call is compared with its replay. A function that cannot be replayed exactly is kept from then on, and the
    logger ``autockpt`` names it. Later calls are compared only now and then: a global number that begins to change
    between forward and backward is not seen at once. Hand such values over as arguments.

    Args:
        function: a function, a method, a partial or a module.

    Returns:
        What takes the same arguments, and returns the same.

    Raises:
        TypeError: `function` cannot be called, or its body does not run in the call.

    Example:
        >>> import torch, autockpt
        >>> mlp = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
        >>> x = torch.randn(4, 8)
        >>> autockpt.recompute(mlp)(x).sum().backward()
        >>> @autockpt.recompute
        ... def block(x, *, scale):
        ...     return x + scale * mlp(x).tanh()
        >>> block(x, scale=0.5).sum().backward()
    """
    if is_compiling():
        return functools.partial(_compiled, function)
    _refuse(function)
    if isinstance(function, types.MethodType):
        # A method again: a deep copy of the object has one of its own.
        bound: Any = types.MethodType(recompute(function.__func__), function.__self__)
        return bound  # type: ignore[no-any-return]
    if isinstance(function, nn.Module):
        again = recompute(_call)
        again.__name__ = (
            "__call__"  # which a pickle has in its place: it holds the plain module, and needs nothing of ours
        )
        called: Any = types.MethodType(again, function)
        return called  # type: ignore[no-any-return]

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = _run(function, args, kwargs)
        return result

    return functools.update_wrapper(run, function, updated=())


def _compiled(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Hand the function to the compiler, which recomputes by its own means."""
    result: R = checkpoint(function, *args, use_reentrant=False, **kwargs)
    return result


def _call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """Call a module."""
    return module(*args, **kwargs)


def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function in a frame of its own, where that is possible and of use."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if is_compiling():
        return _compiled(function, *args, **kwargs)
    if not private.runs_plain(in_function=True):
        return function(*args, **kwargs)
    state = ReachedState(opened(function), args, kwargs)
    key = _name(function, state)
    handle = Handle(Table()) if thread.replays else _handle(function, key, state)
    return run_function(function, key, state, handle, args, kwargs)


def _name(function: Callable[..., Any], state: ReachedState) -> str:
    """Return what a function is called in messages."""
    while isinstance(function, functools.partial):
        function = function.func
    if function is _call:
        function = next(each for each in state.whole if isinstance(each, nn.Module))
    return str(getattr(function, "__qualname__", type(function).__name__)).replace("<locals>.", "")


def _handle(function: Callable[..., Any], key: str, state: ReachedState) -> Handle:
    """Return what is known of a function.

    It is known by its code, the first module that it closes over or is given, the code of the functions there, and the
    numbers and objects that it closes over. These may differ in every call: once `MOST_KNOWN` are known, all new ones
    count as one function.
    """
    code, modules = _code(function), [each for each in state.whole if isinstance(each, nn.Module)]
    about: Any = thread.functions.setdefault(code, weakref.WeakKeyDictionary())
    known: dict[Any, Handle] = about.setdefault(modules[0] if modules else code, {})
    inside = (tuple(_code(each) for each in state.whole if isinstance(each, types.FunctionType)), state.around)
    if inside not in known and len(known) >= MOST_KNOWN:
        inside = _OTHERS
    if inside not in known:
        checks = ReplayChecks(1, always=False, governed=False, told=TOLD)
        known[inside] = Handle(Table(replayers=checks))
        if reason := next(filter(None, map(why_unrepeatable, state.modules)), ""):
            checks.findings.fault(0, key, reason)
    return known[inside]


def _code(function: Any) -> Any:
    """Return the code of a function, which it shares with those that the same lines make; else its class."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.BuiltinFunctionType):
        return function
    return getattr(function, "__code__", type(function))


def _refuse(function: Any) -> None:
    """Refuse what cannot be called, and what only makes an object that runs later."""
    given = f"autockpt.recompute was given {_told(function)}"
    if isinstance(function, type):
        raise TypeError(f"{given}, a class. Make an object of it, and give that: autockpt.recompute(model).")
    if not callable(function):
        raise TypeError(f"{given}, which cannot be called. Give it a function or a module.")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    forward = inner.forward if isinstance(inner, nn.Module) else inner
    if any(is_lazy(each) for each in (forward, type(forward).__call__) for is_lazy in _LAZY):
        raise TypeError(
            f"{given}, whose body does not run in the call: it is a generator or async. Give it a function that "
            "returns tensors, and call that from it."
        )


def _told(function: object) -> str:
    name = getattr(function, "__qualname__", None)
    return str(name) if name else f"an object of type {type(function).__name__}"
