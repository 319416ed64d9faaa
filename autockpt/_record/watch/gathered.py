"""Units of FSDP2 in a step that is watched: which parameters are gathered, and whose code gathers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn.parallel import DistributedDataParallel

from ..._ranks.fsdp import around_units, each_unit, gathered_parameters, units
from ..._ranks.refuse import COVERS_UNITS, IS_A_UNIT, REDUCES
from ..._torch import private
from .marks import MarkKind, SeenCall, SeenStep, SeenWhole

Note: TypeAlias = Callable[[list[torch.Tensor]], object]


class Gathered:
    """The gathered parameters of a model, which are static though they come and go; nothing where there are no units.

    Args:
        model: the model.

    Attributes:
        any: whether there are units.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._units = units(model)
        self.any, self._around = bool(self._units), around_units(self._units)
        inside = {name for name, each in model.named_modules() if name and isinstance(each, DistributedDataParallel)}
        self._reduces = inside | around_units(inside)
        self._keys = {private.storage_key(each) for each in gathered_parameters(model)}
        found = each_unit(model) if self.any else []
        self._at_rest = {id(shard) for unit in found for shard, _ in private.parameters_of(unit)}

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of them, or a view of one."""
        return self.any and private.storage_key(tensor) in self._keys

    def around(self, name: str) -> bool:
        """Whether units gather in the own code of a module: torch functions there are theirs, others in each step."""
        return name in self._around

    def begins(self, note: Note, call: SeenCall, module: torch.nn.Module) -> None:
        """Note which replays of a call that begins would have to gather, and what is gathered for it; the last of all.

        Args:
            note: puts a marker with storages on the tape.
            call: the call.
            module: whose it is.
        """
        if not self.any:
            return
        call.reasons += [COVERS_UNITS] if call.name in self._around else []
        call.reasons += [REDUCES] if call.name in self._reduces else []
        if call.name in self._units:
            call.alone, call.gathers = IS_A_UNIT, private.gather_bytes(self._units[call.name])
        here = (each for each in module._parameters.values() if each is not None and id(each) not in self._at_rest)
        own = private.parts(here)
        self._keys.update(map(private.storage_key, own))
        note(own)

    def reads(self, run: SeenStep, mark: Callable[[MarkKind, int], object]) -> None:
        """Note which units are gathered as backward reads a saved tensor, if that has changed."""
        if not self.any:
            return
        here = frozenset(name for name, unit in self._units.items() if private.is_here(unit))
        coming = frozenset(name for name, unit in self._units.items() if private.is_coming(unit))
        if not run.whole or run.whole[-1] != (here, coming):
            run.whole.append(SeenWhole(here, coming))
            mark("whole", len(run.whole) - 1)
