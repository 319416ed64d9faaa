"""`apply` with a plan that the user gives, which stays whatever batches come; and its argument `offload`."""

from __future__ import annotations

import logging
import os

import msgspec
import torch

from .._choose.pinned.pins import refuse_pins
from .._data.compiled_plan import CompiledPlan
from .._data.errors import NotApplicable
from .._data.files import decode, read
from .._data.goal import Patterns
from .._data.offload import Offload, is_rated
from .._data.plan import Plan, refuse_no_plan
from .._ranks.by_hand import put_on_together
from .._ranks.layers import refuse_no_parts
from .._ranks.refuse import refuse_parts, refuse_units
from .._record.aside.switches import BESIDE, recomputes_itself
from .._record.step import refuse_lazy
from .._run.compare.checks import Checking
from .._run.patch.install import install, uninstall
from .._stash.plan_stash import refuse_no_way, with_measured_rates
from .messages import spoken
from .messages.account import GivenSteps

_log = logging.getLogger("autockpt")


def read_given(plan: Plan | str | os.PathLike[str]) -> Plan:
    """Return the plan that is given, or that lies in the file that is.

    Raises:
        InvalidFile: the file holds no plan.
        NotApplicable: it is no plan.
        OSError: the file cannot be read.
    """
    if isinstance(plan, (str, os.PathLike)):
        if not os.fspath(plan):
            raise NotApplicable("plan is '', which names no file; give a Plan, or its file: plan='plan.json'")
        found: Plan = decode(read(plan), CompiledPlan, Plan, source=str(plan))
        return found
    refuse_no_plan(plan)
    return plan


def apply_given(
    model: torch.nn.Module,
    plan: Plan,
    check: Checking,
    *,
    pinned: tuple[Patterns, Patterns],
    offload: str | os.PathLike[str] | Offload | None,
) -> None:
    """Put the plan that the user gives on a model. It stays whatever batches come.

    If replays run collectives, all ranks put on the same plan, or none of them does.
    """

    def put_on() -> Plan:
        read = _readable(model, plan, pinned=pinned, offload=offload)
        handle = install(model, read, check)
        handle.began = GivenSteps(handle.roots[0])
        return read

    spoken.applied(put_on_together(model, put_on, lambda: uninstall(model)))


def _readable(
    model: torch.nn.Module,
    plan: Plan,
    *,
    pinned: tuple[Patterns, Patterns],
    offload: str | os.PathLike[str] | Offload | None,
) -> Plan:
    """Return the plan, or refuse what does not go with it or with the model."""
    refuse_lazy(model)
    refuse_pins(*pinned)
    refuse_units(model, [segment.calls for segment in plan.segments])
    if isinstance(offload, Offload):
        refuse_pins(*offload.pins.values())
    refuse_parts(model, plan)
    if offload is not None:
        plan = msgspec.structs.replace(plan, offload=Offload.read(offload))
    if recomputes_itself(model):
        _log.warning("%s", BESIDE)
    return plan


def offload_for(model: torch.nn.Module, offload: str | os.PathLike[str] | Offload | None) -> Offload | None:
    """Return where tensors of a model may wait, and how fast they are moved: measured, if the user gives no rate.

    Raises:
        BudgetError: `offload` cannot be read.
        NotApplicable: tensors of this model cannot wait there.
        NoRoom: nothing can wait there now.
    """
    found = Offload.read(offload)
    if found is None:
        return None
    if found.is_shard:
        refuse_no_parts(model, found)
        return found  # ranks measure together, as they make a plan
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    refuse_no_way(found.where, device)
    return found if is_rated(offload) else with_measured_rates(found, device)
