"""`apply`, `remove`, `plan_of`: a plan on a model, in place."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_args

import torch
from torch import nn

from .._calls.pin_names import refuse_unclear_pins
from .._calls.roots import Models, Together, roots
from .._data.compiled_plan import CompiledPlan
from .._data.errors import NotApplicable
from .._data.goal import Goal, Patterns, Pins, refuse_slip
from .._data.offload import Offload
from .._data.plan import Plan
from .._data.text import terminal
from .._ranks.refuse import refuse_outside_training, refuse_sharded
from .._record.alive import alive
from .._record.optimizers.memory import Optimizers
from .._record.step import refuse_late_writes, refuse_unseen, refuse_untrainable
from .._run.compare.checks import Checking
from .._run.patch.install import govern, installed_plan, uninstall
from .._torch import private
from .._torch.devices import device_of
from ..solvers.errors import BudgetError, Infeasible, TooCostly
from ..solvers.units import format_like, shown
from .given import apply_given, offload_for, read_given
from .governor import Governor
from .messages.other_models import telling
from .ranks.compiled import held_as_one
from .request import Request

_log = logging.getLogger("autockpt")

M = TypeVar("M", bound=Models)


def apply(
    model: M,
    budget: int | str | None = None,
    *,
    max_overhead: float | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    inputs: object = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Optimizers | None = None,
    solver: str = "auto",
    seconds: float = 3.0,
    keep: Patterns = (),
    recompute: Patterns = (),
    plan_for: Mapping[str, tuple[int, ...]] | None = None,
    check: Checking = "sampled",
    offload: str | os.PathLike[str] | Offload | None = None,
    strict: bool = False,
) -> M:
    """Make `model` train within `budget`, or several models together, by recomputing what costs least to run again.

    Gradients, buffers and random numbers stay bit for bit those of the plain step. The model is changed in place;
    applying again replaces the plan, and an error leaves the model as it was.

    Without `inputs`, the first steps of your own loop show what to plan for: nothing runs twice, no loss is assumed, no
    optimizer is guessed. Step 1 is recorded and step 2 is timed. In both, saved tensors wait on the host (for a model
    on the CPU: in a temporary file, in ``TMPDIR``), so these steps keep to the budget too. The plan is made as step 3
    begins. It stays until a step needs more: a larger batch, gradients that exist as it begins, other forwards, or more
    of them. Such a step is recorded, and the next one is planned anew. After the first step of another optimizer the
    next step is planned anew as well, without a recording.

    A step begins with the first forward after a backward. If the graph of an earlier forward still waits for its own
    backward, as a generator's does while its critic learns, the step goes on instead. Forwards without gradients do not
    count; those in eval mode count as long as backwards follow them.

    With `inputs`, the plan is made now, for a step on them. Several models, ``[encoder, unet]`` or ``{"unet": unet}``,
    get one plan and one budget for the steps in which the loop calls them; only without `inputs`. A copy of one of them
    runs without a plan. What is recorded and planned is logged to the logger ``autockpt``.

    Args:
        model: any eager module; or several, in a list or by name: calls are then named ``0.block`` or ``unet.block``.
            One that is compiled as a whole by ``inductor`` or ``aot_eager``, on a CPU, is held to its budget inside its
            graphs.
        budget: highest peak of the whole step: bytes, ``"8GB"``, ``"8GiB"``, ``"80%"`` of the device's memory (on a
            CPU, of the physical memory); ``"min"`` for the lowest peak at one level of recomputing; ``"lowest"`` for
            the lowest of all, which may take several plain steps.
        max_overhead: instead of a budget, the highest recompute overhead, a ratio such as 0.15. The plan has the lowest
            peak within it.
        plan: instead of either, a plan to apply as it is, or the file that it was saved in. It stays whatever batches
            come. That of a compiled model is for the graphs that it was made for.
        inputs: one batch to record: a tuple is passed positionally, a mapping by keyword.
        loss: maps the model's outputs to a scalar. Without it, the loss is their ``.loss``, or else the sum of outputs
            with one element; for other outputs, unless such an element is computed from them, three float32 copies are
            reserved, which is what a cross-entropy takes. Only with `inputs`: otherwise your own loss is seen.
        optimizer: the optimizer, whose state and step count in the budget; it is neither run nor changed. A name such
            as ``"adamw"`` stands for a class of ``torch.optim`` with its defaults. Optimizers that are seen to take
            steps count in its place.
        solver: a name in ``autockpt.solvers.SOLVERS``, or ``uniform:4`` or ``block:4`` for so many layers.
        seconds: how long the solver may search. Finding candidates before that takes at most two thirds as long.
        keep: patterns of calls that must not run again; see `solve`. Not together with `plan`.
        recompute: patterns of calls that must run again. Not together with `plan`.
        plan_for: the largest shapes that will come, by name of the argument: ``{"input_ids": (8, 2048)}``. Plans are
            made for them. Without it, once sizes have been seen to vary, plans have headroom for a quarter more.
        check: which replays are compared with what forward saved. Unless ``"never"``, the first replay of each segment
            is a rehearsal: if it differs, backward goes on with what forward saved, and the call is kept from then on,
            with a warning. Later, ``"sampled"`` compares one segment per step in turn, for about 1 % of the step's
            time, and ``"always"`` compares all. If a replay differs then, backward raises `ReplayError`: in the same
            step, but for ``"sampled"`` on CUDA, which waits for no kernel and tells it in the step after.
        offload: where tensors may wait off the device from forward to backward, if moving them is cheaper than
            recomputing them: ``"host"`` for a model on a device, a folder for one on a CPU. ``"shard"`` instead, under
            tensor parallelism: ranks each keep a part of the boundaries that all of them have, and gather it to
            recompute. The speed is measured, or given: ``"host@25GB/s"``. `Offload.of` also names calls that must move.
            With a plan that moves tensors: where they wait. None for nowhere.
        strict: whether a later step that no plan holds to the budget raises `Infeasible`. Otherwise it runs under the
            plan with the lowest peak, with a warning.

    Returns:
        What was given as `model`.

    Raises:
        BudgetError: the budget does not parse, has no unit (``"24"``), or not exactly one of `budget`, `max_overhead`,
            `plan` is given.
        InvalidFile: the file of `plan` holds no plan.
        OSError: the file of `plan` cannot be read.
        Infeasible: no plan meets the budget. The error carries the minimum reachable bytes, what they consist of, what
            would help, and the plan that reaches them. If the plan is made as step 3 begins, the forward there raises
            this error and those below, with the model as it was before `apply`.
        NotApplicable: `plan` is no plan, or names calls that the model does not have; `loss` is no function; or the
            model cannot be planned: it is no module, has nothing to train, is compiled as a whole by another
            backend, on a device or sharded over ranks, is a part of a model that is held to a budget, has such a part,
            is planned together with others that are not given, has lazy modules that have not run yet, or has an RReLU
            and no `inputs`; or several models and `inputs` are given.
        PinError: a pattern matches no call, no plan can honour the pins, or pins are given together with `plan`.
        ProfilingError: the model cannot be recorded, its forward or the loss fails on `inputs`, or `optimizer` is no
            optimizer.
        TooCostly: all plans of this solver that honour the pins have a higher recompute overhead than `max_overhead`.
        UnknownSolver: there is no such solver.
        Exception: an error of the model's own, of another class than Python's usual ones.

    Example:
        >>> import torch, autockpt
        >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
        >>> model = autockpt.apply(torch.nn.Sequential(*(block() for _ in range(8))), budget="2MB")
        >>> for step in range(3):
        ...     model.zero_grad()
        ...     model(torch.randn(256, 32)).square().mean().backward()
        >>> len(autockpt.plan_of(model).segments) > 0
        True
    """
    terminal.install()
    _refuse_unclear(budget, max_overhead, plan, check)
    whole = held_as_one(model)
    if plan is not None:
        _put_on(whole, read_given(plan), inputs, check, (keep, recompute), offload, (loss, plan_for))
        return model
    _refuse_as_it_is(whole, more=(max_overhead, keep, recompute, loss, plan_for, offload))
    goal = _plannable_goal(whole, budget, max_overhead, inputs, loss, plan_for)
    request = Request(
        goal=goal,
        loss=loss,
        optimizer=optimizer,
        solver=solver,
        seconds=seconds,
        pins=Pins.of(keep, recompute),
        plan_for={} if plan_for is None else plan_for,
        strict=strict,
        check=check,
        offload=offload_for(whole, offload),
    )
    _hold(whole, inputs, request)
    return model


def remove(model: M) -> M:
    """Take a plan off a model, or off several, leaving no trace; no effect where none is applied.

    Args:
        model: the model; of several that are planned together all of them, in a list or a mapping.

    Returns:
        What was given as `model`.

    Raises:
        NotApplicable: somebody else patched a forward over ours, without a `__wrapped__` that leads to it; the message
            names that forward. Or the plan is that of a larger model; or `model` is no module, or is one of several
            models without the others.
    """
    whole = held_as_one(model)
    if private.is_compiled(whole):
        from .._compiled.hold import release  # who does not compile loads none of it

        release(whole)
    uninstall(whole)
    return model


def plan_of(model: Models) -> Plan | None:
    """Return the plan that is applied to `model`, or to several; None if there is none, or none yet.

    For one of several models that are planned together, this is the plan of all of them. Of a model that is held to its
    budget inside what was compiled, it is that of the last step, a `CompiledPlan`.

    Raises:
        NotApplicable: `model` is no module.
    """
    whole = held_as_one(model)
    if private.is_compiled(whole):
        from .._compiled.hold import held_by  # who does not compile loads none of it

        held = held_by(whole)
        if held is not None:
            return held.plan
    return installed_plan(whole)


def goal_for(model: nn.Module, budget: int | str | None, max_overhead: float | None) -> Goal:
    """Return the goal of a plan for `model`. A budget in percent is a share of the memory of the model's device.

    Raises:
        BudgetError: the budget cannot be read, has no unit, or is only a few bytes.
    """
    refuse_slip(budget, max_overhead)
    parameter = next(model.parameters(), None)
    if parameter is None:
        return Goal.of(budget, max_overhead)
    device = device_of(parameter.device)
    return Goal.of(budget, max_overhead, total_bytes=device.total_bytes(), memory=device.memory)


def _refuse_unclear(budget: object, max_overhead: object, plan: object, check: object) -> None:
    """Refuse unless exactly one of budget, overhead and plan is given, and `check` has a known value."""
    if sum(given is not None for given in (budget, max_overhead, plan)) != 1:
        raise BudgetError(
            "give either a budget, or max_overhead, or a plan, and only one of them: apply(model, budget='8GB')"
        )
    if check not in get_args(Checking):
        raise BudgetError(f"check is {shown(check)}; it can be {', '.join(map(repr, get_args(Checking)))}")


def _hold(model: nn.Module, inputs: object, request: Request) -> None:
    """Hold a model to what is requested: with a plan for `inputs`, or with plans for the steps that it takes."""
    if private.is_compiled(model):
        from .._compiled.hold import hold

        asked = request.inside_compiled()
        assert asked is not None  # what cannot be asked of it was refused
        hold(model, asked, inputs, telling())
        return
    refuse_unclear_pins(model, request.pins, request.offload)
    governor = Governor(request, model if isinstance(model, Together) else None)
    if inputs is None:
        govern(model, governor)
    else:
        try:
            ready = governor.prepare(model, inputs)
        except (Infeasible, TooCostly) as error:
            raise error.carrying(model_untouched=True) from None
        govern(model, governor, ready.plan, ready.checks, ready.calls)
        governor.resume(model)
    governor.listen(model)


def _put_on(
    model: nn.Module,
    plan: Plan,
    inputs: object,
    check: Checking,
    pinned: tuple[Patterns, Patterns],
    offload: str | os.PathLike[str] | Offload | None,
    more: tuple[object, ...],
) -> None:
    """Put a plan that is given on a model; `more` is what cannot be asked of compiled code beside pins and offload."""
    if not isinstance(plan, CompiledPlan):
        _refuse_as_it_is(model, given=True)
        apply_given(model, plan, check, pinned=pinned, offload=offload)
        return
    from .._compiled.hold import hold, takes  # who does not compile loads none of it
    from .._compiled.refusals import CompiledRequest

    if not private.is_compiled(model) or not takes(model):
        raise NotApplicable(
            "the plan is one of compiled code, and the model is not compiled as a whole by inductor or aot_eager. "
            "Compile it as it was when the plan was made, torch.compile(model), and apply to what that returns."
        )
    _refuse_more((*pinned, offload, *more))
    _refuse_part(model)
    hold(model, CompiledRequest(plan=plan), inputs, telling())


def _plannable_goal(
    model: nn.Module,
    budget: int | str | None,
    max_overhead: float | None,
    inputs: object,
    loss: Callable[[Any], torch.Tensor] | None,
    plan_for: object,
) -> Goal:
    """Return the goal. Refuse models that cannot be planned; and `inputs`, `loss` or `plan_for` of several models."""
    refuse_untrainable(model, loss)
    goal = goal_for(model, budget, max_overhead)
    _look_at_devices(model, goal)
    if inputs is None and not plan_for:
        refuse_sharded(model)
    else:  # a step of our own is recorded, or one of other shapes predicted
        refuse_outside_training(model)
    if isinstance(model, Together) and (inputs is not None or loss is not None or plan_for):
        raise NotApplicable(
            "inputs=, loss= and plan_for= say what one model is given, and several were. Leave them out: your own "
            "first steps are recorded, with whatever the loop does between the models."
        )
    if inputs is None:  # what the first step saves is copied elsewhere, and a later write would miss the copy
        refuse_late_writes(model)
    return goal


def _look_at_devices(model: nn.Module, goal: Goal) -> None:
    """Refuse a device that reports no allocations. Warn of several devices, and of a budget above the memory."""
    there = [each for each in model.parameters() if not each.is_meta]
    trained = [each for each in there if each.requires_grad]
    devices = list(dict.fromkeys(each.device for each in trained or there))
    if devices:  # else the model is on the meta device: its first step refuses where it lies then
        refuse_unseen(devices[0])
        total_bytes, asked_bytes = device_of(devices[0]).total_bytes(), goal.budget_bytes
        if devices[0].type != "cpu" and total_bytes and asked_bytes and asked_bytes > total_bytes:  # a CPU may swap
            _log.warning(
                "the budget of %s is more than %s has, which is %s: a step may run out of memory within it",
                *(format_like(asked_bytes, goal.budget), devices[0], format_like(total_bytes, goal.budget)),
            )
    if len(devices) > 1:
        _log.warning(
            "parameters lie on %s; the budget is that of %s, and what a step holds elsewhere is not planned",
            *(", ".join(map(str, devices)), devices[0]),
        )


def _refuse_as_it_is(model: nn.Module, *, given: bool = False, more: tuple[object, ...] = ()) -> None:
    """Refuse a model that is compiled as a whole, or that is part of a model that is held to a budget.

    If the plan is `given`, a model compiled in place by ``module.compile()`` is accepted. Without one, a model is that
    is compiled by a backend whose memory is predicted; `more` is then what cannot be asked of it.
    """
    compiled = [root for root in roots(model).values() if private.is_compiled(root)]
    if compiled and not given and not isinstance(model, Together):
        from .._compiled.hold import takes  # who does not compile loads none of it

        if takes(model):
            _refuse_more(more)
            compiled = []
    if any(not given or hasattr(root, "_orig_mod") for root in compiled):
        raise NotApplicable(
            "the model is compiled as a whole, and no step inside a compiled forward can be recorded. Apply to the "
            "model itself, with a batch: apply(model, budget, inputs=batch, loss=loss). Compile it after that."
        )
    _refuse_part(model)


def _refuse_part(model: nn.Module) -> None:
    """Refuse a model, or several, if one is a part of a larger model that is held to a budget.

    Raises:
        NotApplicable: one is such a part; the message names the larger model.
    """
    if next(_wholes(model), None) is None:
        return
    gc.collect()  # the larger model may be garbage already
    for name, whole in _wholes(model):
        raise NotApplicable(
            f"the model is {name!r} in a {type(whole).__name__} that is held to a budget, and is planned with it. Take "
            "that budget off first, autockpt.remove(whole); or say there what its calls shall do: apply(whole, budget, "
            f"keep='{name}.*')."
        )


def _wholes(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each model with a budget that contains one of the given models, with the name that it has there."""
    own = roots(model).values()
    for whole in (each for governor in alive(Governor) for each in _held_by(governor)):
        inside = () if any(whole is root for root in own) else whole.named_modules()
        yield from ((name, whole) for name, inner in inside if any(inner is root for root in own))


def _held_by(governor: Governor) -> list[nn.Module]:
    """Return the models that a governor holds to a budget; none for a copy that has not trained yet."""
    model = governor.model
    return [] if model is None or not governor.handle.patched else [*roots(model).values()]


def _refuse_more(more: tuple[object, ...]) -> None:
    """Refuse what cannot be asked of a model that is compiled as a whole."""
    if any(each is not None and each != () for each in more):
        raise NotApplicable(
            "a model that is compiled as a whole takes a budget, inputs=, optimizer=, solver=, seconds= and strict=: "
            "its plan has operators of compiled code, and no calls. Leave max_overhead=, keep=, recompute=, loss=, "
            "plan_for= and offload= out, or apply to the model itself and compile it after that."
        )
