"""Putting a plan on a model, and taking it off again.

Only `forward` in the `__dict__` of some modules changes: of the root, of the segments' parents, members and units.
Names, state_dict, isinstance, deepcopy and pickle stay as they were.

Where a governor holds the model to a budget, the root's forward stays the same from `apply` to `remove` (others may
have wrapped it meanwhile) and asks the governor for the plan; only the other modules are patched anew.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from .._data.errors import NotApplicable
from .._data.plan import Plan
from .frames import Governor, Handle, Patches, governed_forward, patched_forward
from .patch_targets import Wanted, listed


def install(model: nn.Module, plan: Plan) -> None:
    """Make the segments of `plan` recompute. A plan that is already on the model is taken off first.

    Args:
        model: the root that the plan's names are relative to.
        plan: what to recompute.

    Raises:
        NotApplicable: the plan names modules that the model does not have, a run has several parents, or the
            model is one whose calls cannot be told apart (`DataParallel` and its replicas).
    """
    _refuse_replicas(model)
    wanted = Wanted(model, plan)
    uninstall(model)
    handle = _patch_parts(wanted, plan, had_forward="forward" in model.__dict__)
    _patch(model, patched_forward, handle)


def govern(model: nn.Module, governor: Governor, plan: Plan | None = None) -> None:
    """Let `governor` decide about the plan of `model`; one that is already on it is taken off first.

    Args:
        model: the root.
        governor: is asked before each training step; its handle is set here.
        plan: to begin with; None recomputes nothing.

    Raises:
        NotApplicable: see `install`.
    """
    _refuse_replicas(model)
    wanted = Wanted(model, plan) if plan is not None else None
    uninstall(model)
    had_forward = "forward" in model.__dict__
    governor.handle = (
        _patch_parts(wanted, plan, had_forward=had_forward)
        if wanted is not None and plan is not None
        else _handle_without_plan(had_forward)
    )
    _patch(model, governed_forward, governor)


def replan(model: nn.Module, governor: Governor, plan: Plan) -> None:
    """Replace the plan of a governed model, whose own forward may be running; steps before keep theirs.

    Raises:
        NotApplicable: see `install` and `uninstall`; nothing is changed then.
    """
    wanted = Wanted(model, plan)
    had_forward = governor.handle.had_forward
    _unpatch(_patched_parts(model, governor.handle), governor.handle)
    governor.handle = _patch_parts(wanted, plan, had_forward=had_forward)


@contextlib.contextmanager
def unplanned(model: nn.Module, governor: Governor, forward: Callable[..., Any]) -> Iterator[None]:
    """Leave a governed model with nothing but its own forward inside the block; that may be running.

    Whoever has wrapped the governed forward meanwhile has seen the arguments already, so their wrapper goes too.

    Args:
        model: the root.
        governor: of the model.
        forward: the root's own.

    Raises:
        NotApplicable: see `uninstall`.
    """
    handle = governor.handle
    _unpatch(_patched_parts(model, handle), handle)
    governor.handle = _handle_without_plan(handle.had_forward)
    governed = model.__dict__.pop("forward")
    if handle.had_forward:
        model.__dict__["forward"] = forward
    try:
        yield
    finally:
        model.__dict__["forward"] = governed
        if handle.plan is not None:
            replan(model, governor, handle.plan)


def uninstall(model: nn.Module) -> None:
    """Take the plan off `model`, leaving no attribute behind. No effect if there is none.

    Raises:
        NotApplicable: something else was put over a patched forward since, or the model is a part of one that has the
            plan; nothing is changed then.
    """
    handle = _handle(model)
    if handle is None:
        strays = [name for name, module in model.named_modules() if (h := _handle(module)) and h.name == name]
        if (strays and "forward" in model.__dict__) or installed_plan(model) is not None:
            raise NotApplicable("the model's forward was replaced after the plan was applied. Undo that first.")
        return
    if handle.name:
        raise NotApplicable(
            f"a plan applied to another module, in which this one is {handle.name!r}, has patched it. Remove "
            "it from there first."
        )
    parts, governor = _patched_parts(model, handle), governor_of(model)
    if governor is not None:
        governor.close()
    _unpatch(parts, handle)
    _restore(model, handle)


def installed_plan(model: nn.Module) -> Plan | None:
    """Return the plan on `model`, None if there is none.

    Libraries for training put wrappers over the forward; those that say what they wrap do not hide the plan.
    """
    forward: Any = model.__dict__.get("forward")
    with contextlib.suppress(ValueError):  # it says that it wraps itself
        forward = inspect.unwrap(forward)
    handle = _known_to(forward)
    # A copy of the model has its wrapper in common with it, and a model may wrap the forward of another.
    return handle.plan if handle is not None and forward.args[1] is model else None


def governor_of(model: nn.Module) -> Governor | None:
    """Return who holds `model` to a budget, None if nobody does."""
    patch = model.__dict__.get("forward")
    if not isinstance(patch, functools.partial) or patch.func is not governed_forward:
        return None
    governor: Governor = patch.args[2]
    return governor


@contextlib.contextmanager
def set_aside(model: nn.Module) -> Iterator[Plan | None]:
    """Take the plan off `model` inside the block, and put the same one back after it; yields it, None if there is none.

    Raises:
        NotApplicable: see `uninstall`.
    """
    plan, governor = installed_plan(model), governor_of(model)
    uninstall(model)
    try:
        yield plan
    finally:
        if governor is not None:
            govern(model, governor, plan)
        elif plan is not None:
            install(model, plan)


def _patch_parts(wanted: Wanted, plan: Plan, *, had_forward: bool) -> Handle:
    """Patch what a plan wants but the root; return the root's handle."""
    foreign = [name for name, module in wanted.named() if module is not wanted.model and _handle(module) is not None]
    if foreign:
        raise NotApplicable(
            f"a plan applied to another module already covers {listed(foreign)}. Remove that one first."
        )
    token = uuid.uuid4().hex
    handles = {
        name: Handle(
            token=token,
            name=name,
            had_forward=had_forward if module is wanted.model else "forward" in module.__dict__,
            parent=id(module) in wanted.parents,
            places=wanted.places.get(id(module), {}),
            units=wanted.units.get(id(module), {}),
            functions=wanted.functions.get(id(module), {}),
            glue=wanted.glue.get(id(module), {}),
            plan=plan if module is wanted.model else None,
            patched=tuple(name for name, _ in wanted.named()) if module is wanted.model else (),
            patches=Patches(token) if module is wanted.model else None,
        )
        for name, module in wanted.named()
    }
    for name, module in wanted.named():
        if module is not wanted.model:
            _patch(module, patched_forward, handles[name])
    return handles[""]


def _handle_without_plan(had_forward: bool) -> Handle:
    return Handle(token=uuid.uuid4().hex, name="", had_forward=had_forward, parent=False, patched=("",))


def _patch(module: nn.Module, function: Callable[..., Any], knows: object) -> None:
    """Put `function` around the forward of `module`."""
    forward = module.forward
    patch = functools.partial(function, forward, module, knows)
    with contextlib.suppress(ValueError, TypeError):  # some callables have none
        patch.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    module.__dict__["forward"] = patch


def _patched_parts(model: nn.Module, handle: Handle) -> list[nn.Module]:
    """What the plan behind the root's handle has patched, but the root.

    Raises:
        NotApplicable: something else was put over one of them.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    ours, covered = [], []
    for name in handle.patched:
        module = modules.get(name)
        if module is None or module is model:  # None: taken out of the model since
            continue
        own = _handle(module)
        if own is not None and own.token == handle.token:
            ours.append(module)
        elif "forward" in module.__dict__:
            covered.append(name)
    if covered:
        raise NotApplicable(
            f"the forward of {listed(covered)} was replaced after the plan was applied. Undo that first."
        )
    return ours


def _unpatch(parts: Iterable[nn.Module], root: Handle) -> None:
    """Give the parts of a model back the forward that they had; replays to come may need what was over it."""
    for module in parts:
        handle = _handle(module)
        assert handle is not None
        patch = _restore(module, handle)
        if root.patches is not None:
            root.patches.took_off(module, patch)


def _restore(module: nn.Module, handle: Handle) -> functools.partial[Any]:
    """Give a module back the forward that it had; return what was over it."""
    patch: functools.partial[Any] = module.__dict__.pop("forward")
    if handle.had_forward:
        module.__dict__["forward"] = patch.args[0]
    return patch


def _handle(module: nn.Module) -> Handle | None:
    return _known_to(module.__dict__.get("forward"))


def _known_to(forward: Callable[..., Any] | None) -> Handle | None:
    """Return the handle behind a patch; None for any other forward."""
    if not isinstance(forward, functools.partial):
        return None
    handle: Handle | None = None
    if forward.func is patched_forward:
        handle = forward.args[2]
    elif forward.func is governed_forward:
        handle = forward.args[2].handle
    return handle


def _refuse_replicas(model: nn.Module) -> None:
    if isinstance(model, nn.DataParallel) or getattr(model, "_is_replica", False):
        raise NotApplicable(
            "DataParallel runs copies that share their forwards with the original, so they would compute with the "
            "original's weights. Use DistributedDataParallel."
        )
