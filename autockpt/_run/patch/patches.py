"""The patches of forwards, in the `__dict__` of a module, as a partial that knows the module's name.

    forward               of most modules
    _compiled_call_impl   of a part that was compiled by ``module.compile()``: frames stand around compiled code

A root gets `governed_forward` if a governor chooses the plan. All other patches are `patched_forward`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from ..._calls.found.reference import Reference
from ..._data.errors import NotApplicable
from ..._torch.private import COMPILED_CALL
from ...solvers.units import listed
from ..frames.routing import patched_forward
from ..frames.table import Handle, Table
from . import copying
from .governed import Governs, governed_forward


def known_to(forward: Callable[..., Any] | None) -> tuple[str, Handle] | None:
    """Return the name and the handle behind a patch; None for any other forward."""
    if not isinstance(forward, functools.partial):
        return None
    if forward.func is governed_forward:
        return forward.args[2], forward.args[3].handle
    return (forward.args[2], forward.args[3]) if forward.func is patched_forward else None


def patched(module: nn.Module) -> tuple[str, Handle] | None:
    """Return the name and the handle behind the patch that is on a module; None where none is."""
    return known_to(module.__dict__.get("forward")) or known_to(module.__dict__.get(COMPILED_CALL))


def governor_of(module: nn.Module) -> Governs | None:
    """Return what holds a model, or several with it, to a budget, also behind wrappers; None if nothing does."""
    patch = patch_behind(module)
    if patch is None or patch.func is not governed_forward:
        return None
    governor: Governs = patch.args[3]
    return governor


def patch_behind(module: nn.Module) -> functools.partial[Any] | None:
    """Return the patch that is on a module, also behind wrappers that set ``__wrapped__``; None if there is none.

    Libraries for training put wrappers over forwards. A patch behind a wrapper may be another module's: a copied model
    shares the wrapper of the original, and a model may wrap another's forward. It may also be out of use: if a plan is
    taken off behind a wrapper, the patch stays there.
    """
    forward = unwrapped(module)
    known = known_to(forward)
    if known is None or module_of(forward) is not module or known[0] not in known[1].patched:
        return None
    patch: functools.partial[Any] = forward
    return patch


def patched_behind(module: nn.Module) -> tuple[str, Handle] | None:
    """Return the name and the handle behind the patch that is on a module, also behind wrappers; None where none is."""
    return patched(module) or known_to(patch_behind(module))


def unwrapped(module: nn.Module) -> Any:
    """Return the forward in a module's `__dict__`, behind wrappers that set ``__wrapped__``; None if there is none."""
    forward: Any = module.__dict__.get("forward")
    with contextlib.suppress(ValueError):  # a wrapper that wraps itself
        forward = inspect.unwrap(forward)
    return forward


def patch_over(
    function: Callable[..., Any], module: nn.Module, *knows: object, over: str = "forward"
) -> functools.partial[Any]:
    """Return a patch over the forward that a module has now: it calls ``function(own, reference, *knows, ...)``.

    `own` is the forward that is the module's alone, None if it is its class's. The patch is a plain partial, not one of
    a derived class: nested, each of those takes one more level of recursion.
    """
    forward = getattr(module, over)
    of_class = over not in vars(module) and getattr(forward, "__func__", None) is type(module).forward
    return functools.partial(function, None if of_class else forward, Reference(module), *knows)


def own_forward(patch: functools.partial[Any]) -> Any:
    """Return the forward that is the module's alone; None where it is its class's."""
    return patch.args[0]


def module_of(patch: functools.partial[Any]) -> nn.Module | None:
    """Return the module that a patch is on; None where it is gone."""
    reference: Reference = patch.args[1]
    return reference.to()


def patch(module: nn.Module, function: Callable[..., Any], *knows: object, over: str = "forward") -> None:
    """Put `function` around the forward of a module, or `over` what torch calls in its place."""
    patch = patch_over(function, module, *knows, over=over)
    with contextlib.suppress(ValueError, TypeError):  # some callables have no signature
        patch.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    module.__dict__[over] = patch
    reference = Reference(module)
    module.__dict__["__reduce_ex__"] = functools.partial(copying.reduced, _without_patch, reference)
    module.__dict__["__deepcopy__"] = functools.partial(copying.copied, _patch_copied, reference)


def _patch_part(module: nn.Module, name: str, handle: Handle) -> None:
    """Patch a part of a model: around what is compiled, else the compiler would trace the patch.

    Hooks run inside what is compiled. A module that has some keeps the patch inside of them.
    """
    around = getattr(module, COMPILED_CALL) is not None and not module._forward_hooks and not module._forward_pre_hooks
    patch(module, patched_forward, name, handle, over=COMPILED_CALL if around else "forward")
    if "compile" not in module.__dict__:  # else it is a name of the user's own, and not torch's method
        module.__dict__["compile"] = functools.partial(_compile, Reference(module))


def _compile(reference: Reference, /, *args: Any, **kwargs: Any) -> None:
    """Compile a module that has a patch, as its class does. The patch then moves around what is compiled."""
    module: Any = reference.to()
    known = patched(module)
    if known is not None:
        _unpatch_one(module, own=known[1].patched[known[0]])
    type(module).compile(module, *args, **kwargs)
    if known is not None:
        _patch_part(module, *known)


def _patch_copied(module: nn.Module, copied: nn.Module, memo: dict[int, Any]) -> None:
    """Patch the forward of a copy: torch copies nothing that is compiled, and so no patch around it."""
    known = known_to(module.__dict__.get(COMPILED_CALL))
    if known is not None:
        _patch_part(copied, known[0], copy.deepcopy(known[1], memo))


def _without_patch(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a module's attributes with the forward that was its own in the place of a patch, or without one."""
    known = known_to(attributes.get("forward"))
    if known is None:
        return attributes
    if known[1].patched.get(known[0]):
        return {**attributes, "forward": own_forward(attributes["forward"])}
    return {name: value for name, value in attributes.items() if name != "forward"}


def patch_all(
    own: Mapping[str, nn.Module], modules: Mapping[str, nn.Module], handle: Handle, governor: Governs | None
) -> None:
    """Patch the modules of a plan, and the roots, `own`, which ask `governor` for the plan if there is one.

    Raises:
        NotApplicable: see `patch_new`. Nothing is changed then.
    """
    patch_new(modules, handle)
    if governor is not None:
        governor.handle = handle
    for name, root in own.items():
        handle.patched[name] = "forward" in root.__dict__
        if governor is None:
            patch(root, patched_forward, name, handle)
        else:
            patch(root, governed_forward, name, governor)


def patch_new(modules: Mapping[str, nn.Module], handle: Handle) -> None:
    """Patch the modules that have not been yet; roots are left alone.

    Raises:
        NotApplicable: another plan covers one of them, or something without ``__wrapped__`` was put over a patch.
            Nothing is changed then.
    """
    new, foreign, covered = {}, [], []
    for name, module in modules.items():
        if not name or name in handle.roots:
            continue
        known = patched_behind(module)
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
        _patch_part(module, name, handle)


def rename(model: nn.Module, handle: Handle) -> None:
    """Give patches the names that their modules have now: blocks may have been taken out, or moved."""
    stale = [
        (name, module, handle.patched[known[0]])
        for name, module in model.named_modules()
        if name and (known := patched(module)) and known[1] is handle and known[0] != name
    ]
    for name, module, own in stale:
        _unpatch_one(module, own=own)
        handle.patched[name] = own
        _patch_part(module, name, handle)


def patched_parts(root: nn.Module, name: str, handle: Handle) -> list[tuple[str, nn.Module]]:
    """Return the modules inside a root that its plan has patched, each with the name that it had then.

    If blocks were taken out of the model since, two modules may have had the same name.

    Args:
        root: the root, which is left out.
        name: its name.
        handle: what the plan's patches share.

    Raises:
        NotApplicable: something without ``__wrapped__`` was put over one of them.
    """
    ours, covered = [], []
    for inner, module in root.named_modules(prefix=name, remove_duplicate=False):
        known = patched_behind(module)
        if module is root:
            continue
        if known is not None and known[1] is handle:
            ours.append((known[0], module))
        elif inner in handle.patched and "forward" in module.__dict__:
            covered.append(inner)
    if covered:
        raise _covered(covered)
    return ours


def unpatch(parts: Iterable[tuple[str, nn.Module]], handle: Handle) -> None:
    """Give the modules of a plan back the forward that they had. Frames that wait for backward keep what they replay.

    A patch that something else wraps stays where it is, and only calls the forward under it.
    """
    for name, module in dict.fromkeys(parts):
        if patched(module) is not None:
            _unpatch_one(module, own=handle.patched.get(name, False))
        else:
            copying.take(module)
            handle.table = Table()
    handle.patched.clear()


def _unpatch_one(module: nn.Module, *, own: bool) -> None:
    compiled = known_to(module.__dict__.get(COMPILED_CALL)) is not None
    patch: functools.partial[Any] = module.__dict__.pop(COMPILED_CALL if compiled else "forward")
    copying.take(module)
    if compiled:
        module.__dict__[COMPILED_CALL] = own_forward(patch)
    elif own:
        module.__dict__["forward"] = own_forward(patch)


def _covered(names: list[str]) -> NotApplicable:
    return NotApplicable(f"the forward of {listed(names)} was replaced after the plan was applied. Undo that first.")
