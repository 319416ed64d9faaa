"""Putting a plan on a model, and taking it off again.

Only `forward` in the `__dict__` of some modules changes: of the root, of the segments' parents, members and leaves.
Names, state_dict, isinstance, deepcopy and pickle stay as they were. What a patched forward knows is its module, the
module's name and the handle that all of them have in common, so another plan is another table in that.

Where a governor holds the model to a budget, the root's forward asks it for the plan as each step begins.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from .._data.errors import NotApplicable
from .._data.plan import Plan
from .frames import Checking, Governor, Handle, Nets, Table, governed_forward, patched_forward
from .patch_targets import listed, table_of


def install(model: nn.Module, plan: Plan, check: Checking = "never") -> None:
    """Make the segments of `plan` recompute. A plan that is already on the model is taken off first.

    Args:
        model: the root that the plan's names are relative to.
        plan: what to recompute.
        check: which replays are compared with their forwards.

    Raises:
        NotApplicable: the plan names modules that the model does not have, a run has several parents, or the
            model is one whose calls cannot be told apart (`DataParallel` and its replicas).
    """
    govern(model, None, plan, Nets.of(plan, check, governed=False))


def govern(
    model: nn.Module,
    governor: Governor | None,
    plan: Plan | None = None,
    nets: Nets | None = None,
    calls: Mapping[str, int] | None = None,
) -> None:
    """Let `governor` decide about the plan of `model`; one that is already on it is taken off first.

    Args:
        model: the root.
        governor: is asked before each training step; its handle is set here. None where the plan is to stay.
        plan: to begin with; None recomputes nothing.
        nets: what compares its replays; None for nothing.
        calls: how often each module is called in the step that it is for, by name; None where nobody knows.

    Raises:
        NotApplicable: see `install`.
    """
    _refuse_replicas(model)
    if governor is not None:
        _refuse_governed_parts(model)
    table, modules = (Table(), {}) if plan is None else table_of(model, plan, nets, calls)
    uninstall(model)
    handle = Handle(table)
    modules.pop("", None)
    _patch_new(modules, handle)
    handle.patched[""] = "forward" in model.__dict__
    if governor is None:
        _patch(model, patched_forward, "", handle)
    else:
        governor.handle = handle
        _patch(model, governed_forward, governor)


def replan(
    model: nn.Module,
    governor: Governor,
    plan: Plan,
    nets: Nets | None = None,
    calls: Mapping[str, int] | None = None,
) -> None:
    """Replace the plan of a governed model, whose own forward may be running; steps before keep theirs.

    Raises:
        NotApplicable: see `install` and `uninstall`; nothing is changed then.
    """
    table, modules = table_of(model, plan, nets, calls)
    _rename(model, governor.handle)
    _patch_new(modules, governor.handle)
    governor.handle.table = table


def cover(model: nn.Module, governor: Governor) -> bool:
    """Let `governor` decide about a forward that was put in the place of a governed one; whether there is one."""
    if "forward" not in model.__dict__ or _known_to(_unwrapped(model)) is not None:
        return False
    governor.handle.patched[""] = True
    _patch(model, governed_forward, governor)
    return True


def uninstall(model: nn.Module) -> None:
    """Take the plan off `model`, leaving no attribute behind. No effect if there is none.

    Raises:
        NotApplicable: something else was put over a patched forward since, or the model is a part of one that has the
            plan; nothing is changed then.
    """
    known = _known_to(model.__dict__.get("forward"))
    if known is None:
        strays = [
            name
            for name, module in model.named_modules()
            if (k := _known_to(vars(module).get("forward"))) and k[0] == name
        ]
        if (strays and "forward" in model.__dict__) or installed_plan(model) is not None:
            raise NotApplicable("the model's forward was replaced after the plan was applied. Undo that first.")
        return
    name, handle = known
    if name:
        raise NotApplicable(
            f"a plan applied to another module, in which this one is {name!r}, has patched it. Remove it from there "
            "first."
        )
    parts, governor = _patched_parts(model, handle), governor_of(model)
    if governor is not None:
        governor.close()
    _unpatch([("", model), *parts], handle)


def installed_plan(model: nn.Module) -> Plan | None:
    """Return the plan on `model`, None if there is none.

    Libraries for training put wrappers over the forward; those that say what they wrap do not hide the plan.
    """
    forward = _unwrapped(model)
    known = _known_to(forward)
    # A copy of the model has its wrapper in common with it, and a model may wrap the forward of another.
    return known[1].table.plan if known is not None and not known[0] and forward.args[1] is model else None


def _unwrapped(model: nn.Module) -> Any:
    """Return what is in the place of the model's forward, behind what says that it wraps it; None for nothing."""
    forward: Any = model.__dict__.get("forward")
    with contextlib.suppress(ValueError):  # it says that it wraps itself
        forward = inspect.unwrap(forward)
    return forward


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
    plan, governor, known = installed_plan(model), governor_of(model), _known_to(model.__dict__.get("forward"))
    uninstall(model)
    try:
        yield plan
    finally:
        if known is not None and not known[0]:
            table = known[1].table
            govern(model, governor, plan, table.nets, table.strangers.calls)
            if governor is not None:
                governor.resume(model)


def _patch_new(modules: dict[str, nn.Module], handle: Handle) -> None:
    """Patch the modules that have not been yet.

    Raises:
        NotApplicable: another plan covers one of them, or something else was put over a patch; nothing is changed then.
    """
    new, foreign, covered = {}, [], []
    for name, module in modules.items():
        if not name:
            continue
        known = _known_to(module.__dict__.get("forward"))
        if known is None and name in handle.patched and "forward" in module.__dict__:
            covered.append(name)
        elif known is None:
            new[name] = module
        elif known[1] is not handle:
            foreign.append(name)
    if foreign:
        raise NotApplicable(
            f"a plan applied to another module already covers {listed(foreign)}. Remove that one first."
        )
    if covered:
        raise _covered(covered)
    for name, module in new.items():
        handle.patched[name] = "forward" in module.__dict__
        _patch(module, patched_forward, name, handle)


def _rename(model: nn.Module, handle: Handle) -> None:
    """Let patches go by the names that their modules have now: blocks may have been taken out, or put elsewhere."""
    stale = [
        (name, module, handle.patched[known[0]])
        for name, module in model.named_modules()
        if name and (known := _known_to(vars(module).get("forward"))) and known[1] is handle and known[0] != name
    ]
    for name, module, own in stale:
        _unpatch_one(module, own=own)
        handle.patched[name] = own
        _patch(module, patched_forward, name, handle)


def _patch(module: nn.Module, function: Callable[..., Any], *knows: object) -> None:
    """Put `function` around the forward of `module`."""
    forward = module.forward
    patch = functools.partial(function, forward, module, *knows)
    with contextlib.suppress(ValueError, TypeError):  # some callables have none
        patch.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    module.__dict__["forward"] = patch


def _patched_parts(model: nn.Module, handle: Handle) -> list[tuple[str, nn.Module]]:
    """What the plan behind the root's handle has patched, but the root, each with the name that it had then.

    Where blocks were taken out of the model since, two may have had the same one.

    Raises:
        NotApplicable: something else was put over one of them.
    """
    ours, covered = [], []
    for name, module in model.named_modules(remove_duplicate=False):
        known = _known_to(module.__dict__.get("forward"))
        if module is model:
            continue
        if known is not None and known[1] is handle:
            ours.append((known[0], module))
        elif name in handle.patched and "forward" in module.__dict__:
            covered.append(name)
    if covered:
        raise _covered(covered)
    return ours


def _covered(names: list[str]) -> NotApplicable:
    return NotApplicable(f"the forward of {listed(names)} was replaced after the plan was applied. Undo that first.")


def _unpatch(parts: list[tuple[str, nn.Module]], handle: Handle) -> None:
    """Give the parts of a model back the forward that they had. Frames have what was over it."""
    for name, module in dict.fromkeys(parts):
        _unpatch_one(module, own=handle.patched.get(name, False))
    handle.patched.clear()


def _unpatch_one(module: nn.Module, *, own: bool) -> None:
    patch: functools.partial[Any] = module.__dict__.pop("forward")
    if own:
        module.__dict__["forward"] = patch.args[0]


def _known_to(forward: Callable[..., Any] | None) -> tuple[str, Handle] | None:
    """Return the name and the handle behind a patch; None for any other forward."""
    if not isinstance(forward, functools.partial):
        return None
    if forward.func is governed_forward:
        return "", forward.args[2].handle
    return (forward.args[2], forward.args[3]) if forward.func is patched_forward else None


def _refuse_governed_parts(model: nn.Module) -> None:
    parts = [name for name, module in model.named_modules() if name and governor_of(module) is not None]
    if parts:
        raise NotApplicable(f"a budget is applied to a part already, {listed(parts)}. Remove that first.")


def _refuse_replicas(model: nn.Module) -> None:
    if isinstance(model, nn.DataParallel) or getattr(model, "_is_replica", False):
        raise NotApplicable(
            "DataParallel runs copies that share their forwards with the original, so they would compute with the "
            "original's weights. Use DistributedDataParallel."
        )
