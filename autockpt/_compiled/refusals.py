"""What is asked of compiled models, and those that no plan is made for: what their code takes is not predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from .. import __version__
from .._data.compiled_plan import CompiledPlan
from .._data.errors import NotApplicable
from .._data.goal import Goal
from .._ranks.base import Ranks
from .._ranks.errors import PLAN, STRICT
from .._ranks.fsdp import parameters_on_several, units
from .._ranks.refuse import ranks as count_ranks
from .._ranks.refuse import refuse_sharded
from .._record.optimizers.memory import Optimizers
from .._torch.private import compiling as private

BACKENDS = ("aot_eager", "inductor")
"""Backends whose memory is predicted. Others allocate by rules of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRequest:
    """What a user asked for.

    Attributes:
        goal: the budget, or the lowest peak; None where a plan is given.
        plan: the plan that every step takes; None to make plans.
        optimizer: as `apply` takes it.
        solver: name of the solver.
        seconds: how long it may search, for each plan.
        strict: whether a kind of batch that no plan holds to the budget is an error.
    """

    goal: Goal | None = None
    plan: CompiledPlan | None = None
    optimizer: Optimizers | None = None
    solver: str = "auto"
    seconds: float = 3.0
    strict: bool = False

    def compared(self) -> dict[str, str]:
        """Return what must be the same on all ranks that train one model, in words."""
        return {
            PLAN: "to be made" if self.plan is None else f"of {len(self.plan.graphs)} graphs, as given",
            "version": __version__,
            "budget": "none" if self.goal is None else str(self.goal),
            "solver": self.solver,
        }


def refuse(model: nn.Module, settings: private.CompileSettings, *, given: bool = False) -> None:
    """Refuse what is not predicted: devices that round sizes up, shards, what drops tensors itself.

    Args:
        model: what was compiled.
        settings: how.
        given: whether a plan is to be made for a batch that is given.

    Raises:
        NotApplicable: it is refused; the message says why, and what to do.
    """
    if any(each.device.type != "cpu" for each in model.parameters()):
        raise NotApplicable(
            "the model is compiled as a whole and not on a CPU, and what its code takes there is not predicted. Apply "
            "to the model itself, apply(model, budget, inputs=batch, loss=loss), and compile it after that; or compile "
            "its blocks one by one."
        )
    refuse_shards(model)
    if given and count_ranks() > 1:
        raise NotApplicable(
            f"inputs= is given, and {count_ranks()} processes train a model that is compiled as a whole: its graphs "
            "are cut as DistributedDataParallel runs. Leave inputs= out: the plan is made as the first step begins."
        )
    if private.own_share() < 1:
        raise NotApplicable(
            f"torch._functorch.config.activation_memory_budget is {private.own_share():g}: torch drops saved tensors "
            "by itself, and no plan can say which. Set it back to 1; the budget in bytes takes its place."
        )
    if settings.inductor is not None:
        _refuse_inductor(settings.inductor)


def refuse_shards(model: nn.Module) -> None:
    """Refuse a model whose parameters lie on several ranks: gathers and other collectives stand between its graphs.

    Raises:
        NotApplicable: it is such a model; it is one on all ranks alike.
    """
    how = "fully_shard (FSDP2)" if units(model) else "DTensor" if any(parameters_on_several(model)) else ""
    if how:
        raise NotApplicable(
            f"the model is compiled as a whole and sharded by {how}; what runs between its graphs is not predicted. "
            "Compile its blocks one by one instead, block.compile(), and apply to the model itself."
        )
    refuse_sharded(model)


def refuse_strict(request: CompiledRequest, ranks: Ranks) -> None:
    """Refuse to raise, on one of several ranks, where a later step fits no plan: the others would wait for it.

    Raises:
        NotApplicable: it was asked for.
    """
    if request.strict:
        raise NotApplicable(STRICT.format(len(ranks.members)))


def _refuse_inductor(options: Mapping[str, Any]) -> None:
    """Refuse settings of inductor that no plan knows, and a machine on which it cannot compile."""
    from .._torch.private import inductor  # who compiles otherwise loads none of it

    named = inductor.in_the_way(options)
    if named:
        raise NotApplicable(
            f"the model is compiled with {named}, and what its code takes then is not predicted. Leave it out, or "
            "apply to the model itself, apply(model, budget, inputs=batch, loss=loss), and compile it after that."
        )
    if inductor.cpp_compiler_is_missing():
        raise NotApplicable(
            "the model is compiled by inductor, which needs a C++ compiler on a CPU, and there is none. Install the "
            "package g++ (or clang), or name one by CXX=; torch.compile(model, backend='aot_eager') needs none."
        )
