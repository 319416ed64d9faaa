"""Putting a plan on a model, and taking it off again.

Only `forward` in the `__dict__` of some modules changes: of the root, of the segments' parents and of the members.
Names, state_dict, isinstance, deepcopy and pickle stay as they were.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ._errors import NotApplicable
from ._frames import Handle, Place, patched_forward
from ._plan import Plan, Segment

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
    wanted = _Wanted(model, plan)
    uninstall(model)
    foreign = [name for name, module in wanted.named() if _handle(module) is not None]
    if foreign:
        raise NotApplicable(
            f"a plan applied to another module already covers {_listed(foreign)}. Remove that one first."
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
            f"the forward of {_listed(covered)} was replaced after the plan was applied. Undo that first."
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


class _Wanted:
    """Which modules of a model a plan patches, and as what."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        self.names = {id(module): name for name, module in model.named_modules()}
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parents: set[int] = set()
        self.places: dict[int, dict[int, Place]] = {}
        keys = [key for segment in plan.segments for key in (*segment.calls, *filter(None, [segment.parent]))]
        missing = {name for name in map(_name, keys) if name not in self.modules}
        if missing:
            raise NotApplicable(
                f"the plan was made for another model: {type(model).__name__} has no {_listed(sorted(missing))}"
            )
        for number, segment in enumerate(plan.segments):
            self._place(number, segment)

    def named(self) -> list[tuple[str, nn.Module]]:
        """Return the modules to patch by name, the root first."""
        wanted = {id(self.model), *self.parents, *self.places}
        return [(name, self.modules[name]) for key, name in self.names.items() if key in wanted]

    def _place(self, number: int, segment: Segment) -> None:
        if "" in map(_name, segment.calls):
            raise NotApplicable("the model as a whole cannot be a segment: nothing outside it would hold a boundary")
        parent = self._common_caller(segment) if segment.parent is None else _name(segment.parent)
        self.parents.add(id(self.modules[parent]))
        changed = self._buffers(segment)
        for position, key in enumerate(segment.calls):
            module = self.modules[_name(key)]
            if any(isinstance(inner, nn.RReLU) for inner in module.modules()):
                raise NotApplicable(
                    f"{key} contains an RReLU, which draws its noise after autograd has saved it; a replay that stops "
                    "at the last save would miss it. Keep that call."
                )
            buffers = None
            if changed is not None:
                inside = module.named_buffers(remove_duplicate=False)
                buffers = tuple(name for name, buffer in inside if id(buffer) in changed)
            attributes = tuple(
                (path, name)
                for path, inner in module.named_modules()
                for name, value in vars(inner).items()
                if isinstance(value, Tensor)
            )
            place = Place(
                segment=number,
                position=position,
                buffers=buffers,
                attributes=attributes,
                linked=key in segment.linked,
            )
            if self.places.setdefault(id(module), {}).setdefault(int(key.rpartition("#")[2]), place) is not place:
                raise NotApplicable(f"{key} stands in the plan twice, under two names of the same module")

    def _common_caller(self, segment: Segment) -> str:
        """Return the module that makes all the calls, as far as names tell; shared modules have several callers."""
        callers = []
        for key in segment.calls:
            module = self.modules[_name(key)]
            callers.append([self._caller(name) for name, other in self.modules.items() if other is module])
        for caller in callers[0]:
            if all(caller in others for others in callers):
                return caller
        raise NotApplicable(
            f"{_listed(segment.calls)} cannot be one segment: they are called by "
            f"{_listed(sorted({name for others in callers for name in others}))}, and only calls made by the same "
            "forward can"
        )

    def _caller(self, name: str) -> str:
        """Return the nearest ancestor of `name` that has a forward; `ModuleList` and `ModuleDict` have none."""
        while name:
            name = name.rpartition(".")[0]
            module = self.modules[name]
            if "forward" in module.__dict__ or type(module).forward is not nn.Module.forward:
                return name
        return name

    def _buffers(self, segment: Segment) -> set[int] | None:
        if segment.buffers is None:
            return None
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        missing = [name for name in segment.buffers if name not in buffers]
        if missing:
            raise NotApplicable(
                f"the plan was made for another model: {type(self.model).__name__} has no buffer {_listed(missing)}"
            )
        return {id(buffers[name]) for name in segment.buffers}


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


def _name(key: str) -> str:
    return key.rpartition("#")[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
