"""Putting a plan on a model, or on several that train together, and taking it off again.

Only `forward` in the `__dict__` of some modules changes: of the roots, of the segments' parents, members and units.
Names, state_dict, isinstance and pickles stay as they were; a deep copy has the plan too (`copying.py`). A patched
forward knows its module, the module's name, and the handle that all of them share. Another plan is another table in
the handle.

Where a governor holds the model to a budget, the root's forward asks it for the plan as each step begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch import nn

from ..._calls.roots import Together, roots
from ..._data.errors import NotApplicable
from ..._data.plan import Plan
from ...solvers.units import listed
from ..compare.checks import Checking, ReplayChecks
from ..frames.table import Handle, Replayers, Table
from .governed import Governs, governed_forward
from .patches import (
    governor_of,
    known_to,
    patch,
    patch_all,
    patch_behind,
    patched,
    patched_behind,
    patched_parts,
    unpatch,
    unwrapped,
)
from .targets import table_of

_REPLACED = "the model's forward was replaced after the plan was applied. Undo that first"


def install(model: nn.Module, plan: Plan, check: Checking = "never") -> Handle:
    """Make the segments of `plan` recompute. A plan that is already on the model is taken off first.

    Returns what its patched forwards share.

    Args:
        model: the root that the plan's names are relative to, or several.
        plan: what to recompute.
        check: which replays are compared with their forwards.

    Raises:
        NotApplicable: the plan names modules that the model does not have, a run has several parents, or the
            model is one whose calls cannot be told apart (`DataParallel` and its replicas).
    """
    return govern(model, None, plan, ReplayChecks.of(plan, check, governed=False))


def govern(
    model: nn.Module,
    governor: Governs | None,
    plan: Plan | None = None,
    replayers: Replayers | None = None,
    calls: Mapping[str, int] | None = None,
) -> Handle:
    """Let `governor` decide about the plan of `model`; one that is already on it is taken off first.

    Returns what the patched forwards share.

    Args:
        model: the root, or several.
        governor: is asked before each training step; its handle is set here. None where the plan is to stay.
        plan: to begin with; None recomputes nothing.
        replayers: gives frames what replays them; None where nothing is compared.
        calls: by name, how often each module is called in the step that the plan is for; None if that is not known.

    Raises:
        NotApplicable: see `install`.
    """
    own = roots(model)
    for root in own.values():
        _refuse_replicas(root)
        if governor is not None:
            _refuse_governed_parts(root)
    table, modules = (Table(), {}) if plan is None else table_of(model, plan, replayers, calls)
    uninstall(model)
    handle = Handle(table, tuple(own))
    patch_all(own, modules, handle, governor)
    return handle


def cover(model: nn.Module, governor: Governs) -> bool:
    """Put governed forwards over those that were put in their place since; return whether there were any."""
    over = {
        name: root
        for name, root in roots(model).items()
        if "forward" in root.__dict__ and known_to(unwrapped(root)) is None
    }
    for name, root in over.items():
        governor.handle.patched[name] = True
        patch(root, governed_forward, name, governor)
    return bool(over)


def uninstall(model: nn.Module) -> None:
    """Take the plan off `model`, leaving no attribute behind. No effect if there is none.

    A wrapper over a patched forward stays if it sets ``__wrapped__``; it then calls the forward as it was.

    Raises:
        NotApplicable: something without ``__wrapped__`` was put over a patched forward; or the plan is on a larger
            model around this one; or it is on several models, and this is one of them. Nothing is changed then.
    """
    own = roots(model)
    found = {name: known for name, root in own.items() if (known := _plan_on(root))}
    parts: dict[Handle, list[tuple[str, nn.Module]]] = {}
    for root, (name, handle) in ((own[place], known) for place, known in found.items()):
        parts.setdefault(handle, []).extend([(name, root), *patched_parts(root, name, handle)])
    governors = {handle: governor_of(own[place]) for place, (_, handle) in found.items()}
    for handle in parts:
        others = set(handle.roots).difference(name for name, known in found.values() if known is handle)
        if others:
            raise NotApplicable(
                f"the model is planned together with {listed(sorted(others))}. Take the plan off all of them: "
                "autockpt.remove([one, other])."
            )
    for handle, each in parts.items():
        if (governor := governors[handle]) is not None:
            governor.close()
        unpatch(each, handle)


def _plan_on(root: nn.Module) -> tuple[str, Handle] | None:
    """Return the name that a root has in the plan that is on it, and the handle; None where none is.

    Raises:
        NotApplicable: see `uninstall`.
    """
    known = patched_behind(root)
    if known is None:
        strays = any((each := patched_behind(inner)) and _is_in(name, *each) for name, inner in root.named_modules())
        if strays and "forward" in root.__dict__:
            raise NotApplicable(f"{_REPLACED}.")
    elif known[0] not in known[1].roots:
        raise NotApplicable(
            f"a plan applied to another module, in which this one is {known[0]!r}, has patched it. Remove it from "
            "there first."
        )
    return known


def _is_in(inner: str, name: str, handle: Handle) -> bool:
    """Whether `name` is what a plan calls the module that one of its roots calls `inner`."""
    return any(name == (f"{root}.{inner}" if root else inner) for root in handle.roots)


def installed_plan(model: nn.Module) -> Plan | None:
    """Return the plan on `model`, None if there is none; of several, the one that is on all of them together."""
    handle = installed_on(model)
    return None if handle is None else handle.table.plan


def installed_on(model: nn.Module) -> Handle | None:
    """Return what the patched forwards of a model share; of several, of all of them together; None if none are."""
    handles: dict[Handle, set[str]] = {}
    for root in roots(model).values():
        known = known_to(patch_behind(root))
        if known is None or known[0] not in known[1].roots:
            return None
        handles.setdefault(known[1], set()).add(known[0])
    (handle, names), *others = handles.items()
    whole = not isinstance(model, Together) or names == set(handle.roots)
    return handle if whole and not others else None


@contextlib.contextmanager
def set_aside(model: nn.Module) -> Iterator[Plan | None]:
    """Take the plan off `model` inside the block, and put the same one back after it; yields it, None if there is none.

    Raises:
        NotApplicable: see `uninstall`; or something wraps the forward of a root, and the plan could not be put back
            under it.
    """
    model = as_applied(model)
    own = roots(model).values()
    if any(patched(root) is None and patch_behind(root) is not None for root in own):
        raise NotApplicable(f"{_REPLACED}, or take the plan off with autockpt.remove.")
    first = next(iter(own))
    plan, governor, known = installed_plan(model), governor_of(first), patched(first)
    uninstall(model)
    try:
        yield plan
    finally:
        if known is not None and known[0] in known[1].roots:
            table = known[1].table
            handle = govern(model, governor, plan, table.replayers, table.unplanned.calls)
            handle.began = known[1].began
            if governor is not None:
                governor.resume(model)


def as_applied(model: nn.Module) -> nn.Module:
    """Return several models by the names that they have in the plan that is on them; else `model` as it is."""
    if not isinstance(model, Together):
        return model
    known = {name: patched(root) for name, root in roots(model).items()}
    names = {name: found[0] for name, found in known.items() if found is not None and found[0] in found[1].roots}
    if len(set(names.values())) < len(known):
        return model  # there is no plan, or there are several
    return Together({names[name]: root for name, root in roots(model).items()})


def _refuse_governed_parts(root: nn.Module) -> None:
    parts = [name for name, module in root.named_modules() if name and governor_of(module) is not None]
    if parts:
        more = ", with those that it was planned together with" if len(parts) > 1 else ""
        raise NotApplicable(
            f"a budget is applied to a part already, {listed(parts)}. Take it off first{more}: "
            f"autockpt.remove(model.get_submodule({parts[0]!r}))"
        )


def _refuse_replicas(model: nn.Module) -> None:
    if isinstance(model, nn.DataParallel) or getattr(model, "_is_replica", False):
        raise NotApplicable(
            "DataParallel runs copies that share their forwards with the original, so they would compute with the "
            "original's weights. Use DistributedDataParallel."
        )
