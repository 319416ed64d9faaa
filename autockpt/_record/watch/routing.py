"""Standing around what the user's model does: modules' forwards, the torch functions that its code calls, operators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..._calls.names import function_name
from ..._calls.own_errors import OwnErrors
from ..._calls.roots import OneStep, roots
from ..._stash.late_writes import LateWrites
from ..._torch import private

Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments by position and by keyword."""

CASTS = "aten._to_copy."
"""Prefix of the name of the operator that casts."""

MOVES_STATISTICS = ("aten.native_batch_norm.", "aten.cudnn_batch_norm.", "aten.miopen_batch_norm.")
"""How the names begin of operators that change running statistics, in training, and whose schema does not say so."""

STATISTICS = ("running_mean", "running_var")

_NO_CONTAINERS = frozenset(
    {int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format}
)

_DATA: Any = torch.Tensor.data
"""The property; what is read through it counts its versions apart."""

Router: TypeAlias = Callable[[str, torch.nn.Module, object, Callable[[], Any]], Any]
"""Stands around one forward, by its module's name: the last argument runs it; the arguments are for looking at."""

FunctionRouter: TypeAlias = Callable[[str, object, Callable[[], Any]], Any]
"""The same around one torch function, by its name."""

OperatorRouter: TypeAlias = Callable[[Any, Given, Callable[[], Any]], Any]
"""The same around one operator."""


@contextmanager
def patched_forwards(model: torch.nn.Module, router: Router, *, in_place: bool = False) -> Iterator[None]:
    """Route every module's forward through `router` until the context is left.

    The patch sits where a plan's own patch sits (`module.forward`, in the instance's `__dict__`), so the
    recorder sees the very arguments that a frame will see.

    Args:
        model: the model.
        router: stands around the forwards.
        in_place: whether this is the user's own step. Then a root's own forward is running already, and all roots are
            left alone; and what is compiled runs as it is compiled, with nothing watched inside. What stands for a loop
            is left alone in any case.
    """
    patched: list[tuple[dict[str, Any], str, Any]] = []
    running = {id(root) for root in roots(model).values()} if in_place or isinstance(model, OneStep) else set()
    leaves: tuple[str, ...] = ()
    try:
        for name, module in model.named_modules():
            if name.startswith(leaves) or id(module) in running:
                continue
            compiled = in_place and private.is_compiled(module)
            leaves += (f"{name}.",) if compiled else ()
            key = "forward" if module._compiled_call_impl is None or not compiled else "_compiled_call_impl"
            own = getattr(module, key)
            patched.append((vars(module), key, vars(module).get(key)))
            run = private.outside_modes()(own) if compiled else own
            patch = functools.partial(_routed, router, name, module, run)
            with suppress(ValueError):  # a scripted module's has none
                patch.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
            vars(module)[key] = patch  # by the dictionary: a traced module lets nobody delete an attribute
        yield
    finally:
        for attributes, key, before in reversed(patched):
            attributes.pop(key, None)
            if before is not None:
                attributes[key] = before


def _routed(
    router: Router, name: str, module: torch.nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    return router(name, module, (args, kwargs), functools.partial(forward, *args, **kwargs))


class routed_functions(TorchFunctionMode):  # noqa: N801 - used as a context, like its neighbour
    """Route every torch function through `router`: outermost ones only, since the mode is off while one runs.

    Property getters are left out.

    Args:
        router: stands around the functions.
        errors: where errors of the router's own work wait.
        late: sees which of them write uncounted to saved tensors; None if none are put elsewhere.
    """

    def __init__(self, router: FunctionRouter, errors: OwnErrors, late: LateWrites | None = None) -> None:
        super().__init__()
        self._router, self._errors, self._late = router, errors, late

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":
            if self._late is not None and func.__self__ is _DATA:
                self._late.opens(args[0])
            return func(*args, **kwargs)
        # No closure: its cells would keep the arguments for as long as an error's traceback lives.
        route = functools.partial(self._route, function_name(func), (args, kwargs))
        output = self._errors.around(route, functools.partial(func, *args, **kwargs))
        self._errors.interrupt()
        return output

    def _route(self, name: str, given: Given, run: Callable[[], Any]) -> Any:
        return self._router(name, given, run if self._late is None else self._late.around(name, given, run))


class routed_operators(TorchDispatchMode):  # noqa: N801 - used as a context, like its neighbours
    """Route every operator through `router`, but what fake tensors ask themselves.

    Args:
        router: stands around the operators.
        errors: where errors of the router's own work wait; None if they are raised as the context is left.
    """

    def __init__(self, router: OperatorRouter, errors: OwnErrors | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._router, self._tells = router, errors is None
        self._errors = OwnErrors() if errors is None else errors

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._tells and error is None:
            self._errors.tell()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return private.device_asked(func, args) or func(*args, **kwargs)
        route = functools.partial(self._router, func, (args, kwargs))
        return self._errors.around(route, functools.partial(func, *args, **kwargs))


def tensors_in(values: object) -> list[torch.Tensor]:
    """Return the tensors among the arguments or results of an operator, and of wrappers what they wrap."""
    return private.parts(_tensors_in(values))


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Go through what is mostly plain: torch's own walk asks of each value first whether it is a kind of container."""
    kind = type(values)
    if kind is tuple or kind is list or kind is dict:
        for value in values.values() if kind is dict else values:
            yield from _tensors_in(value)
    elif isinstance(values, torch.Tensor):
        yield values
    elif kind not in _NO_CONTAINERS:
        yield from (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def written_by(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator changes in place."""
    schema = op._schema
    if schema.is_mutable:
        named = {each.name for each in schema.arguments if each.alias_info and each.alias_info.is_write}
    elif str(op).startswith(MOVES_STATISTICS):
        values = {each.name: value for each, value in zip(schema.arguments, args, strict=False)} | kwargs
        named = set(STATISTICS) if values.get("training") else set()
    else:
        return []
    places = [(i, each.name) for i, each in enumerate(schema.arguments) if each.name in named]
    return tensors_in([args[i] if i < len(args) else kwargs.get(name) for i, name in places])
