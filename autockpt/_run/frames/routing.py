"""The forwards that a plan puts on modules: they open scopes, count calls and let members join frames."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils.checkpoint import checkpoint

from ..._calls.found.reference import Reference
from ..._calls.found.state import ModuleState
from ..._calls.values import tensors
from ..._data.errors import NotApplicable
from ..._data.text.keys import key_of
from ..._stash.overlap import arrive
from ..._torch import private
from ..._torch.devices.present import also_drawn_from
from .frame import Replayer, unpack
from .plain import Plain
from .recording import Recording
from .table import Handle, Place, Table
from .thread import Function, OwnCode, Scope, mismatch, thread
from .unit import Wanted
from .units import FunctionWatch
from .waiting.moved import Moves, MovingPack

GONE = (
    "the module of this forward is gone. Under a plan, a forward does not keep its module alive: hold on to the model, "
    "and not to `model.forward` alone."
)


def patched_forward(
    own: Function | None, reference: Reference, name: str, handle: Handle, /, *args: Any, **kwargs: Any
) -> Any:
    """Run a module's forward, its `own` or its class's, as the table of `handle` says.

    Modules may be nested deeply, so this is the only Python frame of ours around what a parent runs.
    """
    module = reference.to()
    if module is None:
        raise ReferenceError(GONE)
    if is_compiling():
        return _compiled(own, module, name, handle, args, kwargs)
    forward = types.MethodType(type(module).forward, module) if own is None else own
    outer, watch, grad = thread.scope, thread.watch, torch.is_grad_enabled()
    suspended, scope, modes = False, None, None
    try:
        # With gradients off, this is no call of the plan, though it is numbered. Its functions count as its caller's.
        if watch is not None and watch.handle is handle:
            suspended = _suspended(watch, module, grad=grad)
        role = _role(module, forward, name, handle, grad=grad)
        if role is None:
            return forward(*args, **kwargs)
        if not isinstance(role, Scope):
            return role(args, kwargs)
        scope, modes = role, private.function_modes()
        thread.scope, functions = scope, scope.table.units.functions.get(scope.key)
        if functions is not None:
            _watch(functions, scope, module)
        result = forward(*args, **kwargs)
        if scope.underway:
            _end(scope, scope.key, result)
        if scope.is_root and scope.early and handle.made_early is not None:
            handle.made_early(result, scope.early)
        return result
    finally:
        thread.scope, thread.watch = outer, watch
        try:
            if modes is not None:
                private.set_function_modes(modes)
            if suspended and watch is not None:
                private.push_function_mode(watch)
        finally:
            if scope is not None:
                scope.end()


def _suspended(watch: OwnCode, module: nn.Module, *, grad: bool) -> bool:
    """Stop watching the caller's own code while a call of it runs; return whether the watching mode was on."""
    if not grad and not _has_fast_path(module):
        return False
    thread.watch = None
    return private.suspend_function_mode(watch)


def _watch(functions: Wanted, scope: Scope, module: nn.Module) -> None:
    """Watch the torch functions that a call's own code calls, unless it is compiled or calls something compiled."""
    # The compiler would trace with the mode that is on around it.
    if not _compiled_inside(module):
        thread.watch = FunctionWatch(scope.handle, functions, functools.partial(_function_member, scope, module))
        private.push_function_mode(thread.watch)


def _compiled(
    own: Function | None, module: nn.Module, name: str, handle: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a forward that is being compiled. Members run under torch's own checkpoint.

    A forward of the class is called with its module. Where its graph breaks inside, the compiler would read a bound one
    anew as `module.forward`, which is our patch, without end.
    """
    forward, given = (type(module).forward, (module, *args)) if own is None else (own, args)
    if name in handle.table.names and torch.is_grad_enabled():
        return checkpoint(forward, *given, use_reentrant=False, **kwargs)
    return forward(*given, **kwargs)


def _role(
    module: nn.Module, forward: Function, name: str, handle: Handle, *, grad: bool
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | Scope | None:
    """Return what runs a call, given its arguments; or the scope that the call opens; or None if it runs plain."""
    units, outer = thread.units, thread.scope
    if units is not None and units.handle is handle:
        return functools.partial(units.enter, name, forward)
    if outer is None or outer.handle is not handle:
        return _outermost(module, name, handle, outer) if grad else None
    occurrence = outer.count(name)
    if outer.inside:
        return None
    key, table = key_of(name, occurrence), outer.table
    place = table.members.get(key)
    if place is not None and grad and _may_join(table, place):
        if place.offload == "saved":
            run = functools.partial(_moving, outer, forward, module, place)
        else:
            run = functools.partial(
                member, outer, forward, ModuleState(module, place.buffers, unread=place.unread), key, place
            )
        return functools.partial(_ending, outer, key, run) if key in table.ends else run
    if grad and table.unplanned.has(name, occurrence) and private.runs_plain():
        return functools.partial(table.unplanned.run, forward, module)
    return Scope(handle, outer, key) if name in table.parents or key in table.ends else None


def _outermost(module: nn.Module, name: str, handle: Handle, outer: Scope | None) -> Scope | None:
    """Return the scope that a root's call opens; None for other modules, in replays, and in members of another plan."""
    if thread.replays or (outer is not None and outer.inside) or name not in handle.roots:
        return None
    if handle.began is not None:
        handle.began(module, name)
    if not handle.table.parents:
        return None
    scope = Scope(handle, None)
    scope.key = key_of(name, scope.count(name))
    return scope


def _has_fast_path(module: nn.Module) -> bool:
    """Whether a module inside takes another path, with gradients off, if a function mode is on around it."""
    return any(isinstance(inner, _FAST) and not inner.training for inner in module.modules())


_FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def _compiled_inside(module: nn.Module) -> bool:
    """Whether the module is compiled, or something that its own code may call."""
    children = [module, *module._modules.values()]
    for child in children:
        if child is not module and isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            children.extend(child._modules.values())
    return any(child is not None and private.is_compiled(child) for child in children)


def _may_join(table: Table, place: Place) -> bool:
    """Whether a call may be recomputed now. Not if a replay of its segment went wrong: then it is kept."""
    return private.runs_plain() and (table.replayers is None or place.segment not in table.replayers.refused)


def _function_member(
    scope: Scope,
    module: nn.Module,
    key: str,
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a torch function that the own forward of `module` calls, as a member if the plan has it as one."""
    place = scope.table.members.get(key)
    if place is None or not torch.is_grad_enabled() or not _may_join(scope.table, place):
        return function(*args, **kwargs)
    given = tensors((args, kwargs))
    own = {id(buffer) for buffer in module._buffers.values()}
    state = ModuleState(None, (), [each for each in given if isinstance(each, nn.Parameter) or id(each) in own])
    state.devices.update(also_drawn_from())
    # A function that is known to change a buffer is never planned as a member (see `Place`). If `place.buffers` is
    # known, there is nothing to check. Nor is there for a kept unit, which is not run again.
    unknown = key not in scope.table.units.kept and place.buffers is None
    every = set(map(id, module.buffers())) if unknown else ()
    buffers = [(each, each.detach().clone()) for each in given if id(each) in every]  # versions may miss a write
    result = member(scope, function, state, key, place, args, kwargs)
    if any(not torch.equal(buffer, before) for buffer, before in buffers):
        raise NotApplicable(f"{key} changes a buffer, which its replay would do again. Keep it.")
    return result


def member(
    scope: Scope,
    forward: Callable[..., Any],
    state: ModuleState,
    key: str,
    place: Place,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call that is recomputed, in the frame that is open or in a new one."""
    table, frame = scope.table, scope.open
    if frame is None or not frame.takes(place):
        if place.segment in scope.begun:
            mismatch(table, key, "begins its segment anew, since its calls do not run one after another in one forward")
        scope.begun.add(place.segment)
        scope.end_frame()
        moves = _moves(scope, place, args, kwargs) if place.offload else None
        frame = scope.open = (scope.records or Recording)(place.segment, _replayer(scope, place.segment), moves)
        if place.segment in table.early:
            scope.early.append(weakref.ref(frame.frame))
    scope.inside, tries = True, private.tries_kernels()
    if tries:  # cudnn.benchmark: a replay might find another kernel to be the fastest, and make other bits
        private.try_kernels(False)
    try:
        return frame.run(key, forward, state, place, scope, args, kwargs)
    except BaseException:
        scope.end_frame()  # later members join another frame, whose replay does not run this again
        scope.begun.discard(place.segment)
        raise
    finally:
        scope.inside = False
        if tries:
            private.try_kernels(True)


def _moving(
    scope: Scope, forward: Function, module: nn.Module, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a call whose saved tensors wait off the device."""
    scope.end_frame()
    if private.outer_hooks() is not None:  # such as save_on_cpu: they decide where tensors wait
        return forward(*args, **kwargs)
    pack = MovingPack(_moves(scope, place, args, kwargs), ModuleState(module, ()).owners, tensors((args, kwargs)))
    scope.inside = True
    try:
        private.push_hooks(pack.hook, unpack)
        return forward(*args, **kwargs)
    finally:
        scope.inside = False
        try:
            private.pop_hooks()
        finally:
            pack.close()


def _moves(scope: Scope, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Moves:
    """Return what moves tensors of a call, or of its frame."""
    stash = scope.table.stash.of(_device(args, kwargs))
    return Moves(stash, None if place.until is None else scope.underway.setdefault(place.until, []))


def _ending(
    scope: Scope,
    key: str,
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call, and let the device wait at its end for the copies that must be done by then."""
    result = run(args, kwargs)
    _end(scope, key, result)
    return result


def _end(scope: Scope, key: str, result: object) -> None:
    arrive(scope.underway.pop(key, ()), tensors(result))


def _replayer(scope: Scope, segment: int) -> Replayer:
    """Return what replays the next frame of a segment."""
    replayers, watched = scope.table.replayers, scope.handle.watched
    replayer = Plain() if replayers is None else replayers.replayer(segment)
    around = scope.table.around.get(segment)
    replayer = replayer if around is None else around(replayer)
    return replayer if watched is None else watched(replayer)


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of a call's first tensor."""
    return next((tensor.device for tensor in tensors((args, kwargs))), torch.device("cpu"))
