"""Which modules of a model a plan patches, and as what; and all the reasons for which it cannot be applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from .._calls.unrepeatable import why_unrepeatable
from .._data.errors import NotApplicable
from .._data.keys import split_key
from .._data.plan import Plan, Segment
from .frames import Choice, Place


class Wanted:
    """Which modules of a model a plan patches, and as what; modules are keys by their id.

    Attributes:
        parents: modules whose calls open a scope.
        places: occurrence to place, for modules that are members.
        units: occurrence to what is decided about it, for modules that are units.
        functions: occurrence to the units among the functions that the call's own code calls.
        glue: occurrence to the members among them.
        children: modules whose code must not be taken for that of the call with such units around it.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        self.names = {id(module): name for name, module in model.named_modules()}
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parents: set[int] = set()
        self.places: dict[int, dict[int, Place]] = {}
        self.units: dict[int, dict[int, bool]] = {}
        self.functions: dict[int, dict[int, Choice]] = {}
        self.glue: dict[int, dict[int, dict[str, Place]]] = {}
        self.children: set[int] = set()
        keys = [
            split_key(key)[0]
            for segment in plan.segments
            for key in (*segment.calls, *filter(None, [segment.parent]), *segment.keep, *segment.skip)
        ]
        missing = {name for name in map(name_of, keys) if name not in self.modules}
        if missing:
            raise NotApplicable(
                f"the plan was made for another model: {type(model).__name__} has no {listed(sorted(missing))}"
            )
        for number, segment in enumerate(plan.segments):
            self._select(segment)
            self._place(number, segment)

    def named(self) -> list[tuple[str, nn.Module]]:
        """Return the modules to patch by name, the root first."""
        wanted = {id(self.model), *self.parents, *self.glue, *self.places, *self.units, *self.functions, *self.children}
        return [(name, self.modules[name]) for key, name in self.names.items() if key in wanted]

    def _place(self, number: int, segment: Segment) -> None:
        calls = [call for call, function in map(split_key, segment.calls) if not function]
        if "" in map(name_of, calls):
            raise NotApplicable("the model as a whole cannot be a segment: nothing outside it would hold a boundary")
        parent = self._common_caller(segment) if segment.parent is None else name_of(segment.parent)
        self.parents.add(id(self.modules[parent]))
        changed = self._buffers(segment)
        for position, key in enumerate(segment.calls):
            if key not in calls:
                self._place_function(number, segment, position)
                continue
            module = self.modules[name_of(key)]
            if reason := why_unrepeatable(module):
                raise NotApplicable(f"{key} {reason}, so that no replay can repeat it. Keep it.")
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
                last=position + 1 == len(segment.calls),
                buffers=buffers,
                attributes=attributes,
                linked=key in segment.linked,
                selective=bool(segment.keep or segment.skip),
                functions=self.functions.get(id(module), {}).get(occurrence_of(key)),
            )
            if self.places.setdefault(id(module), {}).setdefault(occurrence_of(key), place) is not place:
                raise NotApplicable(f"{key} stands in the plan twice, under two names of the same module")

    def _place_function(self, number: int, segment: Segment, position: int) -> None:
        """Note a member that is a torch function of its caller's own code."""
        key = segment.calls[position]
        call, function = split_key(key)
        callers = {call for call, function in map(split_key, segment.calls) if function}
        if len(callers) > 1 or segment.parent not in (None, call):
            raise NotApplicable(
                f"{listed(segment.calls)} cannot be one segment of {segment.parent or call!r}: only calls made by the "
                "same forward can"
            )
        if function.partition("#")[0] in ("rrelu", "rrelu_"):
            raise NotApplicable(f"{key} {_LATE_NOISE}")
        module = self.modules[name_of(call)]
        place = Place(
            segment=number,
            position=position,
            last=position + 1 == len(segment.calls),
            buffers=None if segment.buffers is None else (),
            linked=key in segment.linked,
            selective=bool(segment.keep or segment.skip),
            unit=_decisions(segment).get(key),
        )
        places = self.glue.setdefault(id(module), {}).setdefault(occurrence_of(call), {})
        if places.setdefault(function, place) is not place:
            raise NotApplicable(f"{key} stands in the plan twice, under two names of the same module")
        self.children.update(_nearest(module))

    def _select(self, segment: Segment) -> None:
        """Note the units of a segment."""
        members = [self.modules[name_of(call)] for call, function in map(split_key, segment.calls) if not function]
        inside = {id(module) for member in members for module in member.modules()}
        for key, decision in _decisions(segment).items():
            if key in segment.calls and split_key(key)[1]:
                continue  # a member
            call, function = split_key(key)
            module = self.modules[name_of(call)]
            if id(module) not in inside or (not function and module in members):
                raise NotApplicable(
                    f"{key} is not inside the segment of {listed(segment.calls)}, so it cannot be its unit"
                )
            if function:
                choice = self.functions.setdefault(id(module), {}).setdefault(occurrence_of(call), {})
                choice[function] = decision
                self.children.update(_nearest(module))
            else:
                self.units.setdefault(id(module), {})[occurrence_of(call)] = decision

    def _common_caller(self, segment: Segment) -> str:
        """Return the module that makes all the calls, as far as names tell; shared modules have several callers."""
        callers = []
        for key in segment.calls:
            call, function = split_key(key)
            if function:
                callers.append([name_of(call)])
                continue
            module = self.modules[name_of(key)]
            callers.append([self._caller(name) for name, other in self.modules.items() if other is module])
        for caller in callers[0]:
            if all(caller in others for others in callers):
                return caller
        raise NotApplicable(
            f"{listed(segment.calls)} cannot be one segment: they are called by "
            f"{listed(sorted({name for others in callers for name in others}))}, and only calls made by the same "
            "forward can"
        )

    def _caller(self, name: str) -> str:
        """Return the nearest ancestor of `name` that has a forward; `ModuleList` and `ModuleDict` have none."""
        while name:
            name = name.rpartition(".")[0]
            module = self.modules[name]
            if _has_forward(module):
                return name
        return name

    def _buffers(self, segment: Segment) -> set[int] | None:
        if segment.buffers is None:
            return None
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        missing = [name for name in segment.buffers if name not in buffers]
        if missing:
            raise NotApplicable(
                f"the plan was made for another model: {type(self.model).__name__} has no buffer {listed(missing)}"
            )
        return {id(buffers[name]) for name in segment.buffers}


_LATE_NOISE = (
    "draws its noise after autograd has saved it; a replay that stops at the last save would miss it. Keep that call."
)


def _decisions(segment: Segment) -> Choice:
    """What is decided about each unit of a segment."""
    return dict.fromkeys(segment.keep, True) | dict.fromkeys(segment.skip, False)


def name_of(key: str) -> str:
    """Return the qualified name in a call's key."""
    return key.rpartition("#")[0]


def occurrence_of(key: str) -> int:
    """Return which call of its module a call's key means."""
    return int(key.rpartition("#")[2])


def listed(names: Iterable[str]) -> str:
    """Return names for a sentence."""
    return ", ".join(repr(name) for name in names)


def _nearest(module: nn.Module) -> Iterator[int]:
    """Modules inside that the module's own code can call.

    `ModuleList` and `ModuleDict` stand for their members; a `Sequential` may be called or gone through.
    """
    for child in module.children():
        if _has_forward(child):
            yield id(child)
            if isinstance(child, nn.Sequential):
                yield from map(id, child)
        else:
            yield from _nearest(child)


def _has_forward(module: nn.Module) -> bool:
    return "forward" in module.__dict__ or type(module).forward is not nn.Module.forward
