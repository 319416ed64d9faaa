"""The forwards that a plan puts on modules: they open scopes, count calls and let members join frames."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils.checkpoint import checkpoint

from ... import _torch_private
from ..._data.errors import NotApplicable
from ..._data.plan import Plan
from .mismatch import mismatch
from .patches import Patches
from .recording import Arguments, Recording
from .selection import Function, FunctionWatch, as_unit, own_code
from .state import ModuleState, given_buffers, holder_of
from .thread import Scope, thread
from .units import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one call of a module stands in its plan.

    Attributes:
        segment: number of the segment.
        position: the call's position in it.
        last: whether it is the segment's last.
        buffers: buffers that the call changes, by name relative to the module; None if that is not known. A torch
            function that is known to change any is no member.
        attributes: tensors that are plain attributes, neither parameter nor buffer, as the old `weight_norm` makes
            them: the path of the module that has it, and its name.
        linked: whether the recorded call took a result of an earlier call of the segment as it was.
        selective: whether the segment has units, which a replay does not run.
        functions: the units among the torch functions of the call's own code.
        unit: where the member is itself a unit, which only a torch function is: what is decided about it.
    """

    segment: int
    position: int
    last: bool
    buffers: tuple[str, ...] | None
    attributes: tuple[tuple[str, str], ...] = ()
    linked: bool = False
    selective: bool = False
    functions: Choice | None = None
    unit: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """What a patched forward knows: plan data only, so that copies and pickles of the module take it along.

    Attributes:
        token: the same for all modules patched by one application of a plan.
        name: the module's qualified name.
        had_forward: whether the instance had a `forward` of its own before.
        parent: whether its calls open a scope.
        places: occurrence to place, for the calls that are recomputed.
        units: occurrence to what is decided about it, for the calls that are units.
        functions: occurrence to the units among the torch functions of that call's own code.
        glue: occurrence to the members among them, as ``name#occurrence``.
        plan: the plan; on the root only.
        patched: the names of all patched modules; on the root only.
        patches: what is put on the others; on the root only, where there is a plan.
    """

    token: str
    name: str
    had_forward: bool
    parent: bool
    places: dict[int, Place] = field(default_factory=dict)
    units: dict[int, bool] = field(default_factory=dict)
    functions: dict[int, Choice] = field(default_factory=dict)
    glue: dict[int, dict[str, Place]] = field(default_factory=dict)
    plan: Plan | None = None
    patched: tuple[str, ...] = ()
    patches: Patches | None = None

    @property
    def selects(self) -> bool:
        """Whether a call inside a member may be a unit or have units of its own."""
        return bool(self.units or self.functions)

    def count(self, counts: dict[str, int]) -> int:
        """Return the occurrence of the call that begins now."""
        occurrence = counts.get(self.name, 0)
        counts[self.name] = occurrence + 1
        return occurrence


def patched_forward(
    forward: Callable[..., Any], module: nn.Module, handle: Handle, /, *args: Any, **kwargs: Any
) -> Any:
    """Run `forward`, which is `module`'s own, as the plan behind `handle` wants it."""
    if is_compiling():
        if handle.places and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)
    watch = thread.watch
    # With gradients off it is no call, though it counts: what it calls counts for its caller.
    if watch is None or watch.token != handle.token or not torch.is_grad_enabled():
        return _routed(forward, module, handle, args, kwargs)
    thread.watch = None  # what this call runs is not its caller's own code
    suspended = _torch_private.suspend_function_mode(watch)
    try:
        return _routed(forward, module, handle, args, kwargs)
    finally:
        if suspended:
            _torch_private.resume_function_mode(watch)
        thread.watch = watch


def _routed(
    forward: Callable[..., Any], module: nn.Module, handle: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a call as what it is to the plan, inside a member or not."""
    selector = thread.selector
    if selector is not None and selector.token == handle.token:
        return selector.enter(handle, forward, args, kwargs)
    scope = thread.scope
    if scope is None and not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if scope is None or scope.token != handle.token:
        # Outside any call of the root; in a replay; in a member of another plan, whose replay comes through here again.
        if handle.patches is None or thread.replays or (scope is not None and scope.inside):
            return forward(*args, **kwargs)
        return _in_scope(Scope(handle.patches, {}, set()), forward, module, handle, 0, args, kwargs)
    return _counted(scope, forward, module, handle, args, kwargs)


def _in_scope(
    scope: Scope,
    forward: Callable[..., Any],
    module: nn.Module,
    handle: Handle,
    occurrence: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    outer, thread.scope = thread.scope, scope
    glue = handle.glue.get(occurrence)
    try:
        # What a compiled call runs would be traced with the mode that is on around it.
        if glue is None or _compiled_inside(module):
            return forward(*args, **kwargs)
        join = functools.partial(_function_member, scope, module, f"{handle.name}#{occurrence}", glue)
        return FunctionWatch(handle.token, glue, join).around(forward, args, kwargs)
    finally:
        scope.end_frame()
        thread.scope = outer


def _compiled_inside(module: nn.Module) -> bool:
    """Whether something is compiled that the module's own code may call."""
    children = list(module._modules.values())
    for child in children:
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            children.extend(child._modules.values())
    return any(child is not None and _torch_private.is_compiled(child) for child in children)


def _counted(
    scope: Scope,
    forward: Callable[..., Any],
    module: nn.Module,
    handle: Handle,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Count the call, and run it as a member, as a parent, or plain."""
    occurrence = handle.count(scope.counts)
    place = handle.places.get(occurrence)
    if scope.inside:
        return forward(*args, **kwargs)
    if place is not None and _can_record():
        return _member(scope, forward, module, f"{handle.name}#{occurrence}", place, args, kwargs)
    if handle.parent:
        inner = Scope(scope.patches, scope.counts, scope.begun)
        return _in_scope(inner, forward, module, handle, occurrence, args, kwargs)
    return forward(*args, **kwargs)


def _can_record() -> bool:
    return (
        torch.is_grad_enabled()
        and not _torch_private.transforms_active()
        and not _torch_private.foreign_checkpoint_active()
        and not (_torch_private.cuda_in_use() and torch.cuda.is_current_stream_capturing())
    )


def _function_member(
    scope: Scope,
    module: nn.Module,
    caller: str,
    places: dict[str, Place],
    numbered: str,
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a torch function of a parent's own code as a member."""
    if not _can_record():
        return function(*args, **kwargs)
    key, place = f"{caller}/{numbered}", places[numbered]
    # A unit is not run by its replay, and a plan that knows its buffers has no function that changes one.
    unknown = place.unit is None and place.buffers is None
    buffers = given_buffers(module, (args, kwargs)) if unknown else []
    # It may draw on the current device without being given a tensor there.
    devices = [torch.device("cuda", torch.cuda.current_device())] if _torch_private.cuda_in_use() else []
    result = _member(scope, function, holder_of(module, (args, kwargs)), key, place, args, kwargs, devices=devices)
    if any(not torch.equal(buffer, before) for buffer, before in buffers):
        raise NotApplicable(f"{key} changes a buffer, which its replay would do again. Keep it.")
    return result


def _member(
    scope: Scope,
    forward: Callable[..., Any],
    module: nn.Module,
    key: str,
    place: Place,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    devices: Iterable[torch.device] = (),
) -> Any:
    arguments = Arguments(args, kwargs)
    state = ModuleState(module, place.buffers, place.attributes)
    state.devices.update(devices)
    recording = scope.recording
    joins = recording is not None and recording.takes(place.segment, place.position)
    differentiable = state.requires_grad or any(leaf.requires_grad for leaf in arguments.leaves)
    # Before and between others what needs no gradient runs again too, else the frame would hold its result.
    if place.last and not joins and not differentiable:
        return forward(*args, **kwargs)
    if recording is None or not joins:
        if place.segment in scope.begun:
            mismatch(key, "begins its segment anew, since its calls do not run one after another in one forward")
        scope.begun.add(place.segment)
        scope.end_frame()
        recording = scope.recording = Recording(place.segment)
    recording.position = place.position
    scope.inside = True
    try:
        if place.functions is not None:
            forward = functools.partial(own_code, key, place.functions, forward)
        elif place.unit is not None:
            forward = functools.partial(as_unit, key, place.unit, forward)
        selective = scope if place.selective else None
        return recording.run(key, forward, state, arguments, linked=place.linked, selective=selective)
    except BaseException:
        scope.end_frame()  # a replay of later members must not run into this again
        scope.begun.discard(place.segment)
        raise
    finally:
        scope.inside = False
