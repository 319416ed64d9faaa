"""The forwards that a plan puts on modules: they open scopes, count calls and let members join frames."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils.checkpoint import checkpoint

from .. import _torch_private
from .._calls.values import tensors
from .._data.door import bare
from .._data.errors import NotApplicable
from .._device.present import also_drawn_from, captures_graph
from ..solvers.errors import AutockptError
from .leaves import Function, FunctionWatch
from .patch import Reference
from .recording import Recording
from .state import ModuleState
from .thread import Handle, Place, Scope, Table, mismatch, thread

GONE = (
    "the module of this forward is gone. A plan is on it, and then its forward does not keep it alive: hold on to the "
    "model, and not to `model.forward` alone."
)


def patched_forward(
    own: Callable[..., Any] | None,
    reference: Reference,
    name: str,
    handle: Handle,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a module's forward, its `own` or its class's, as the table behind `handle` wants it.

    Modules may be nested deep: this is the only Python frame of ours around what a parent runs.
    """
    module = reference.to()
    if module is None:
        raise ReferenceError(GONE)
    if is_compiling():  # the compiler knows no other way to bind it
        forward = type(module).forward.__get__(module) if own is None else own
        if name in handle.table.names and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)
    forward = types.MethodType(type(module).forward, module) if own is None else own
    leaves, outer, watch, grad = thread.leaves, thread.scope, thread.watch, torch.is_grad_enabled()
    # With gradients off it is no call, though it counts: what it calls counts for its caller.
    if watch is not None and watch.handle is handle and (grad or _has_fast_path(module)):
        thread.watch = None  # what this call runs is not its caller's own code
        suspended = _torch_private.suspend_function_mode(watch)
        try:
            return patched_forward(own, reference, name, handle, *args, **kwargs)
        finally:
            if suspended:
                _torch_private.push_function_mode(watch)
            thread.watch = watch
    if leaves is not None and leaves.handle is handle:
        return leaves.enter(name, forward, args, kwargs)
    if outer is not None and outer.handle is handle:
        occurrence = outer.counts.get(name, 0)
        outer.counts[name] = occurrence + 1
        if outer.inside:
            return forward(*args, **kwargs)
        key, table = f"{name}#{occurrence}", outer.table
        place = table.members.get(key)
        if place is not None and grad and _may_join(table, place):
            return _member(outer, forward, ModuleState(module, place.buffers), key, place, args, kwargs)
        if grad and table.strangers.has(name, occurrence) and _can_record():
            return table.strangers.run(forward, module, args, kwargs)
        if name not in table.parents:
            return forward(*args, **kwargs)
        scope = Scope(handle, outer)
    else:
        table = handle.table
        plain = not grad or not table.parents or thread.replays or (outer is not None and outer.inside)
        if plain or name not in handle.roots:
            return forward(*args, **kwargs)  # outside the root, in a replay, or in a member of another plan
        scope = Scope(handle, None)
        key = f"{name}#{scope.counts.get(name, 0)}"
        scope.counts[name] = scope.counts.get(name, 0) + 1
    functions, modes, thread.scope = table.functions.get(key), _torch_private.function_modes(), scope
    try:
        # What a compiled call runs would be traced with the mode that is on around it.
        if functions is not None and not _compiled_inside(module):
            thread.watch = FunctionWatch(handle, functions, functools.partial(_function_member, scope, module))
            _torch_private.push_function_mode(thread.watch)
        return forward(*args, **kwargs)
    finally:
        thread.scope, thread.watch = outer, watch
        try:
            _torch_private.set_function_modes(modes)
        finally:
            scope.end_frame()


class Governor(Protocol):
    """Who decides about the plan of a model.

    Attributes:
        handle: that of the model.
    """

    handle: Handle

    def train(
        self, root: nn.Module, name: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a training forward of a root: `forward` is its own."""

    def pause(self, name: str, arguments: object) -> None:
        """End what is being recorded: the root of this name does something else than train now."""

    def resume(self, model: nn.Module) -> None:
        """Hold the model to its budget again."""

    def close(self) -> None:
        """Let go of everything: the plan is taken off the model."""


def governed_forward(
    own: Callable[..., Any] | None,
    reference: Reference,
    name: str,
    governor: Governor,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a root's forward, its `own` or its class's, as its governor wants it."""
    module = reference.to()
    if module is None:
        raise ReferenceError(GONE)
    forward = types.MethodType(type(module).forward, module) if own is None else own
    if not governor.handle.patched:  # taken off since, and who put another forward over this one calls it
        return forward(*args, **kwargs)
    if _trains(module, (args, kwargs)):
        try:
            return governor.train(module, name, forward, args, kwargs)
        except AutockptError as error:  # where no plan is found, users see the line that called their model
            raise bare(error, but_theirs=True) from error.__cause__
    if thread.scope is None and not thread.replays and not is_compiling():
        governor.pause(name, (args, kwargs))
    return patched_forward(own, reference, name, governor.handle, *args, **kwargs)


def _trains(module: nn.Module, arguments: object) -> bool:
    """Whether a forward may be one of training: of parameters, or through frozen ones, in whatever mode those are."""
    return (
        torch.is_grad_enabled()
        and thread.scope is None  # else another plan's member calls the model
        and not thread.replays
        and not is_compiling()
        and not _torch_private.transforms_active()
        and not _torch_private.foreign_checkpoint_active()  # which counts what is saved, and recomputes it by itself
        and (
            any(parameter.requires_grad for parameter in module.parameters())
            or any(tensor.requires_grad for tensor in tensors(arguments))
        )
    )


def _has_fast_path(module: nn.Module) -> bool:
    """Whether something inside computes otherwise, with gradients off, where a function mode is on around it."""
    return any(isinstance(inner, _FAST) and not inner.training for inner in module.modules())


_FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def _compiled_inside(module: nn.Module) -> bool:
    """Whether something is compiled that the module's own code may call."""
    children = list(module._modules.values())
    for child in children:
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            children.extend(child._modules.values())
    return any(child is not None and _torch_private.is_compiled(child) for child in children)


def _can_record() -> bool:
    return (
        not _torch_private.transforms_active()
        and not _torch_private.foreign_checkpoint_active()
        and not _torch_private.parametrizations_are_cached()  # in forward; a replay would compute them anew
        and not _torch_private.is_tracing()
        and not captures_graph()
    )


def _may_join(table: Table, place: Place) -> bool:
    """Whether a call may be recomputed now. Where a replay of its segment went wrong, it is kept."""
    return _can_record() and (table.nets is None or place.segment not in table.nets.refused)


def _function_member(
    scope: Scope,
    module: nn.Module,
    key: str,
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a torch function of a parent's own code as a member."""
    place = scope.table.members.get(key)
    if place is None or not torch.is_grad_enabled() or not _may_join(scope.table, place):
        return function(*args, **kwargs)
    given = tensors((args, kwargs))
    own = {id(buffer) for buffer in module._buffers.values()}
    state = ModuleState(None, (), [leaf for leaf in given if isinstance(leaf, nn.Parameter) or id(leaf) in own])
    state.devices.update(also_drawn_from())
    # A leaf is not run by its replay, and a plan that knows its buffers has no function that changes one.
    unknown = key not in scope.table.leaves and place.buffers is None
    every = set(map(id, module.buffers())) if unknown else ()
    buffers = [(leaf, leaf.detach().clone()) for leaf in given if id(leaf) in every]  # no version may tell of a write
    result = _member(scope, function, state, key, place, args, kwargs)
    if any(not torch.equal(buffer, before) for buffer, before in buffers):
        raise NotApplicable(f"{key} changes a buffer, which its replay would do again. Keep it.")
    return result


def _member(
    scope: Scope,
    forward: Callable[..., Any],
    state: ModuleState,
    key: str,
    place: Place,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call that is recomputed, in the frame that is open or in a new one."""
    table, recording = scope.table, scope.recording
    if recording is None or not recording.takes(place):
        if place.segment in scope.begun:
            mismatch(table, key, "begins its segment anew, since its calls do not run one after another in one forward")
        scope.begun.add(place.segment)
        scope.end_frame()
        recording = scope.recording = Recording(place.segment, table.nets)
    scope.inside, tries = True, _torch_private.tries_kernels()
    if tries:
        _torch_private.try_kernels(False)
    try:
        return recording.run(key, forward, state, place, scope, args, kwargs)
    except BaseException:
        scope.end_frame()  # a replay of later members must not run into this again
        scope.begun.discard(place.segment)
        raise
    finally:
        scope.inside = False
        if tries:
            _torch_private.try_kernels(True)
