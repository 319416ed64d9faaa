"""What a plan does to each call of a model, as a table; and all the reasons for which a plan cannot be applied."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import nn

from ..._calls.found.spared import Inside
from ..._calls.unrepeatable import why_unrepeatable
from ..._data.errors import NotApplicable
from ..._data.plan import Plan, Segment
from ..._data.text.keys import name_of, split_key
from ..._stash.plan_stash import PlanStash, stash_of
from ...solvers.units import listed
from ..frames.table import Place, Replayers, Table
from ..frames.unit import PlannedUnits, Wanted
from ..frames.unplanned import UnplannedCalls
from ..parts.parts import InParts
from .modules import attributes_inside, buffers_inside, has_forward, is_pythons, nearest


def table_of(
    model: nn.Module,
    plan: Plan,
    replayers: Replayers | None = None,
    calls: Mapping[str, int] | None = None,
    early: Collection[int] = (),
) -> tuple[Table, dict[str, nn.Module]]:
    """Return what patched forwards look up of a plan, and the modules whose forwards must be patched, the root first.

    Args:
        model: the root.
        plan: the plan.
        replayers: gives frames what replays them; None where nothing is to be compared.
        calls: by name, how often each module is called in the step that the plan is for; None if that is not known.
        early: numbers of the segments whose replays may run before their backward begins.

    Raises:
        NotApplicable: the plan does not fit the model.
    """
    targets = _Targets(model)
    targets.refuse_unknown(plan)
    for number, segment in enumerate(plan.segments):
        targets.add(number, segment)
    known = {targets.first(name): times for name, times in (calls or {}).items() if name in targets.modules}
    unplanned = targets.callable_beyond(known)
    units = PlannedUnits(
        kept=targets.units,
        functions={call: Wanted.of(call, functions) for call, functions in targets.functions.items()},
        inside={name_of(key) for key in map(_call_of, targets.units)},
    )
    table = Table(
        plan=plan,
        parents=targets.parents | ({""} if unplanned else set()),
        members=targets.members,
        units=units,
        names={name_of(key) for key in map(_call_of, targets.members)},
        replayers=replayers,
        unplanned=UnplannedCalls(known),
        stash=stash_of(plan.offload, model) if any(segment.offload for segment in plan.segments) else PlanStash(),
        ends=frozenset(place.until for place in targets.members.values() if place.until is not None),
        around={number: InParts for number, segment in enumerate(plan.segments) if segment.goes_in_parts},
        early=early,
    )
    wanted = {"", *table.parents, *table.names, *units.inside, *targets.children, *unplanned, *map(name_of, table.ends)}
    wanted |= targets.deep
    return table, {name: targets.modules[name] for name, *_ in targets.aliases.values() if name in wanted}


class _Targets:
    """A table in the making. Modules go by the first of their names.

    Attributes:
        aliases: all names of each module, by its id.
        modules: modules by all of their names.
        parents, members: as in the table.
        units: by key, True for a unit whose result is kept, False for one that is skipped.
        functions: by the key of a call, the functions of its own code that are members or units, as
            ``name#occurrence``.
        children: modules inside a call whose own functions are counted: they get a patch, since their functions do not
            count.
        deep: modules that make or are calls of inner segments.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.aliases: dict[int, list[str]] = {}
        for name, module in self.modules.items():
            self.aliases.setdefault(id(module), []).append(name)
        self.parents: set[str] = set()
        self.members: dict[str, Place] = {}
        self.units: dict[str, bool] = {}
        self.functions: dict[str, set[str]] = {}
        self.children: set[str] = set()
        self.deep: set[str] = set()

    def refuse_unknown(self, plan: Plan) -> None:
        """Refuse a plan with names that the model does not have."""
        every = (
            key
            for segment in _all_of(plan.segments)
            for key in (*segment.calls, *filter(None, [segment.parent, segment.until]), *segment.units)
        )
        missing = {name for name in map(name_of, map(_call_of, every)) if name not in self.modules}
        if missing:
            raise NotApplicable(
                f"the plan was made for another model: {type(self.model).__name__} has no {listed(sorted(missing))}"
            )

    def add(self, number: int, segment: Segment) -> None:
        """Enter a segment: its units, and then its members."""
        calls = [call for call, function in map(split_key, segment.calls) if not function]
        for key, kept in (dict.fromkeys(segment.keep, True) | dict.fromkeys(segment.skip, False)).items():
            self._add_unit(segment, key, kept, [self.modules[name_of(call)] for call in calls])
        if "" in map(name_of, calls):
            raise NotApplicable("the model as a whole cannot be a segment: nothing outside it would hold a boundary")
        parent = self._common_caller(segment) if segment.parent is None else name_of(segment.parent)
        self.parents.add(self.first(parent))
        changed, inner = self._buffers(segment), self._inner(segment, calls)
        for position, key in enumerate(segment.calls):
            call, function = split_key(key)
            module = self.modules[name_of(call)]
            buffers: Inside | None = ()
            if function:
                self._refuse_function(segment, key)
                self._look_for(call, function)
            else:
                _refuse_module(key, module)
                buffers = buffers_inside(module, changed) if changed else ()
            if changed is None:
                buffers = None
            place = Place(
                segment=number,
                position=position,
                last=position == len(segment.calls) - 1,
                buffers=buffers,
                unread=() if function else attributes_inside(name_of(call), segment.unread),
                linked=key in segment.linked,
                selective=bool(segment.units),
                offload=segment.offload,
                until=None if segment.until is None else self._key(segment.until),
                cut=segment.cuts[position] if segment.cuts else 0,
                inner=None if function else inner,
            )
            if self.members.setdefault(self._key(key), place) is not place:
                raise NotApplicable(f"{key} stands in the plan twice, under two names of the same module")

    def _inner(self, segment: Segment, calls: list[str]) -> Table | None:
        """Return what becomes of the calls inside a segment's own when they are replayed; None where all run plain."""
        if not segment.inner:
            return None
        deeper = copy.copy(self)
        deeper.members, deeper.parents = {}, set()
        members = [self.modules[name_of(call)] for call in calls]
        inside = {inner for member in members for inner in member.modules() if inner is not member}
        for number, each in enumerate(segment.inner):
            if not all(self.modules[name_of(call)] in inside for call in each.calls):
                raise NotApplicable(f"{listed(each.calls)} is not inside {listed(calls)}, the segment around it")
            deeper.add(number, each)
        names = {name_of(key) for key in deeper.members}
        self.deep |= deeper.parents | names
        return Table(members=deeper.members, parents=deeper.parents, names=names)

    def callable_beyond(self, known: Mapping[str, int]) -> set[str]:
        """Return the modules that may be called more often than is known.

        These are modules that a loop calls, that the root or a segment's parent calls, or that were not called before.
        Modules whose caller called none are left out: it is compiled, or only takes the weights of its children.
        """
        callers = {self._caller(name) for name in known if name}
        return {
            name
            for name, *_ in self.aliases.values()
            if name and is_pythons(self.modules[name]) and (caller := self._caller(name)) in callers
            if name not in known or known[name] > known.get(caller, 1) or caller in self.parents or not caller
        }

    def _refuse_function(self, segment: Segment, key: str) -> None:
        """Refuse a torch function that can be no member of a segment."""
        call, function = split_key(key)
        callers = {call for call, function in map(split_key, segment.calls) if function}
        if len(callers) > 1 or segment.parent not in (None, call):
            raise NotApplicable(
                f"{listed(segment.calls)} cannot be one segment of {segment.parent or call!r}: only calls made by the "
                "same forward can"
            )
        if function.partition("#")[0] in ("rrelu", "rrelu_"):
            raise NotApplicable(
                f"{key} draws its noise after autograd has saved it; a replay that stops at the last save would miss "
                "it. Keep that call."
            )

    def _add_unit(self, segment: Segment, key: str, kept: bool, members: list[nn.Module]) -> None:
        """Take up a unit of a segment, which is kept or else skipped. Refuse one that is not inside the segment."""
        call, function = split_key(key)
        module = self.modules[name_of(call)]
        self.units[self._key(key)] = kept
        if function and key in segment.calls:
            return
        inside = any(module is inner for member in members for inner in member.modules())
        if not inside or (not function and module in members):
            raise NotApplicable(f"{key} is not inside the segment of {listed(segment.calls)}, so it cannot be its unit")
        if function:
            self._look_for(call, function)

    def _look_for(self, call: str, function: str) -> None:
        self.functions.setdefault(self._key(call), set()).add(function)
        self.children.update(map(self.first, nearest(name_of(call), self.modules[name_of(call)])))

    def first(self, name: str) -> str:
        """The first of a module's names."""
        return self.aliases[id(self.modules[name])][0]

    def _key(self, key: str) -> str:
        name = name_of(_call_of(key))
        return f"{self.first(name)}{key[len(name) :]}"

    def _common_caller(self, segment: Segment) -> str:
        """Return the module that makes all the calls, as far as names tell; shared modules have several callers."""
        callers = []
        for key in segment.calls:
            call, function = split_key(key)
            module = self.modules[name_of(call)]
            names = self.aliases[id(module)]
            callers.append([name_of(call)] if function else [self._caller(name) for name in names])
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
            if has_forward(self.modules[name]):
                return name
        return name

    def _buffers(self, segment: Segment) -> set[int] | None:
        if segment.buffers is None:
            return None
        found: dict[str, torch.Tensor | None] = {}
        for name in segment.buffers:
            owner, _, last = name.rpartition(".")
            found[name] = self.modules[owner]._buffers.get(last) if owner in self.modules else None
        missing = [name for name, buffer in found.items() if buffer is None]
        if missing:
            raise NotApplicable(
                f"the plan was made for another model: {type(self.model).__name__} has no buffer {listed(missing)}"
            )
        return set(map(id, found.values()))


def _refuse_module(key: str, module: nn.Module) -> None:
    """Refuse a module whose call can be no member of a segment."""
    if not has_forward(module):
        raise NotApplicable(
            f"{key} is a {type(module).__name__}, which is never called: it has no forward. Name the modules inside it."
        )
    if reason := why_unrepeatable(module):
        raise NotApplicable(f"{key} {reason}, so that no replay can repeat it. Keep it.")


def _all_of(segments: Iterable[Segment]) -> Iterator[Segment]:
    """The segments, and those inside them."""
    for segment in segments:
        yield segment
        yield from _all_of(segment.inner)


def _call_of(key: str) -> str:
    return split_key(key)[0]
