"""Units of FSDP2 (`fully_shard`): which parameters are at rest and which are gathered, and whose code gathers.

    forward of a block      its hooks gather ─▶ forward, where our patch sits ─▶ its hooks let go
    parent's own code       ├──────────────────────────────────────────────────────────────────┤

So a segment of one unit, or inside one, needs no gather of its own: the unit's hook on its outputs has gathered before
backward reads what the segment saves. A segment over several units finds the last one gathered. Its replay gathers each
of the others, and frees it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from .._data.text.keys import name_of, split_key
from .._torch import private


def units(model: nn.Module) -> dict[str, Any]:
    """Return the units of a model, by the names of their modules; none where this process has no process group."""
    if not (private.process_group() and private.any_units()):
        return {}
    named = ((name, private.unit_of(module)) for name, module in model.named_modules())
    return {name: unit for name, unit in named if unit is not None}


def each_unit(model: nn.Module) -> list[Any]:
    """Return the units of a model, each once."""
    return list({id(unit): unit for unit in units(model).values()}.values())


def parameters_on_several(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the parameters, by name, that lie on several ranks in forward too (DTensor)."""
    if private.process_group():
        own = {id(each) for unit in units(model).values() for pair in private.parameters_of(unit) for each in pair}
        for name, parameter in model.named_parameters():
            if private.is_distributed(parameter) and id(parameter) not in own:
                yield name, parameter


def runs_collectives(model: nn.Module) -> bool:
    """Whether replays of a model's calls run collectives, so that all ranks have to run the same ones."""
    several = any(map(private.lies_on_several, each_unit(model)))  # FSDP2 over tensor parallelism
    return several or next(parameters_on_several(model), None) is not None


def gathers(model: nn.Module, segments: Iterable[Sequence[str]]) -> bool:
    """Whether replays gather: a segment has several calls, and one is a unit, which may not be gathered in the replay.

    Args:
        model: the model.
        segments: the keys of the calls of each.
    """
    every = units(model)
    return any(not every.keys().isdisjoint(called(calls)) for calls in segments if every and len(calls) > 1)


def called(calls: Iterable[str]) -> set[str]:
    """Return the names of the modules that are called by calls of these keys.

    Functions that the code of a module calls are inside that module.
    """
    return {name_of(call) for call, function in map(split_key, calls) if not function}


def around_units(names: Iterable[str]) -> frozenset[str]:
    """Return the names of all modules around these units: units may gather while the code of such a module runs."""
    found: set[str] = set()
    for name in names:
        while name:
            name = name.rpartition(".")[0]
            found.add(name)
    return frozenset(found)


def parameters_at_rest(model: nn.Module) -> list[nn.Parameter]:
    """Return a model's parameters; for those that are gathered now their shards, which optimizers train."""
    found = list(model.parameters())
    shards: dict[int, Any] = {
        id(gathered): shard
        for unit in each_unit(model)
        for shard, gathered in private.parameters_of(unit)
        if gathered is not None
    }
    return [shards.get(id(each), each) for each in found] if shards else found


def gathered_parameters(model: nn.Module) -> list[Tensor]:
    """Return the gathered parameters of all units that have ever been gathered.

    Their storages stay. They have no bytes while a unit is not gathered.
    """
    pairs = (pair for unit in each_unit(model) for pair in private.parameters_of(unit))
    return private.parts(gathered for _, gathered in pairs if gathered is not None)


def gathered_now(model: nn.Module) -> list[Tensor]:
    """Return the parameters that are gathered now, and the buffers in which collectives brought these or the next."""
    found = [each for each in gathered_parameters(model) if each.untyped_storage().nbytes()]
    return [*found, *arriving(model)]


def arriving(model: nn.Module) -> list[Tensor]:
    """Return the buffers in which collectives brought parameters, and which units have not freed yet."""
    found = {id(each): each for unit in each_unit(model) for each in private.buffers_of(unit)}
    return list(found.values())


def waiting_gradients(model: nn.Module) -> list[Tensor]:
    """Return the unreduced gradients that units hold until they reduce them."""
    return private.parts(each for unit in each_unit(model) for each in private.waiting_gradients(unit))


def switches(model: nn.Module) -> tuple[object, ...]:
    """Return the settings of units that decide how much a step holds, besides the model and its batch."""
    return tuple(private.unit_switches(unit) for unit in each_unit(model))
