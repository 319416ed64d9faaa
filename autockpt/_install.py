"""Putting a plan on a model, and taking it off again.

Only `forward` in the `__dict__` of some modules changes: of the root, of the segments' parents, members and units.
Names, state_dict, isinstance, deepcopy and pickle stay as they were.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ._errors import NotApplicable
from ._frames import Handle, patched_forward
from ._plan import Plan
from ._wanted import Wanted, listed

__all__ = ["install", "installed_plan", "set_aside", "uninstall"]


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
    foreign = [name for name, module in wanted.named() if _handle(module) is not None]
    if foreign:
        raise NotApplicable(
            f"a plan applied to another module already covers {listed(foreign)}. Remove that one first."
        )
    token = uuid.uuid4().hex
    patched = tuple(name for name, _ in wanted.named())
    for name, module in wanted.named():
        root = module is model
        handle = Handle(
            token=token,
            name=name,
            had_forward="forward" in module.__dict__,
            parent=id(module) in wanted.parents,
            places=wanted.places.get(id(module), {}),
            units=wanted.units.get(id(module), {}),
            functions=wanted.functions.get(id(module), {}),
            plan=plan if root else None,
            patched=patched if root else (),
        )
        forward = module.forward
        patch = functools.partial(patched_forward, forward, module, handle)
        with contextlib.suppress(ValueError, TypeError):  # some callables have none
            patch.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
        module.__dict__["forward"] = patch


def uninstall(model: nn.Module) -> None:
    """Take the plan off `model`, leaving no attribute behind. No effect if there is none.

    Raises:
        NotApplicable: something else was put over a patched forward since; nothing is changed then.
    """
    handle = _handle(model)
    if handle is None:
        strays = [name for name, module in model.named_modules() if (h := _handle(module)) and h.name == name]
        if strays and "forward" in model.__dict__:
            raise NotApplicable("the model's forward was replaced after the plan was applied. Undo that first.")
        return
    modules = dict(model.named_modules(remove_duplicate=False))
    ours, covered = [], []
    for name in handle.patched:
        module = modules.get(name)
        if module is None:  # taken out of the model since
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
    for module in ours:
        patch: functools.partial[Any] = module.__dict__.pop("forward")
        if patch.args[2].had_forward:
            module.__dict__["forward"] = patch.args[0]


def installed_plan(model: nn.Module) -> Plan | None:
    """Return the plan on `model`, None if there is none."""
    handle = _handle(model)
    return None if handle is None else handle.plan


@contextlib.contextmanager
def set_aside(model: nn.Module) -> Iterator[Plan | None]:
    """Take the plan off `model` inside the block, and put the same one back after it; yields it, None if there is none.

    Raises:
        NotApplicable: see `uninstall`.
    """
    plan = installed_plan(model)
    uninstall(model)
    try:
        yield plan
    finally:
        if plan is not None:
            install(model, plan)


def _handle(module: nn.Module) -> Handle | None:
    patch: Callable[..., Any] | None = module.__dict__.get("forward")
    if isinstance(patch, functools.partial) and patch.func is patched_forward:
        handle: Handle = patch.args[2]
        return handle
    return None


def _refuse_replicas(model: nn.Module) -> None:
    if isinstance(model, nn.DataParallel) or getattr(model, "_is_replica", False):
        raise NotApplicable(
            "DataParallel runs copies that share their forwards with the original, so they would compute with the "
            "original's weights. Use DistributedDataParallel."
        )
