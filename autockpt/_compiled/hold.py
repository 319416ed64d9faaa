"""Holding a compiled model to a budget: its compiled call is wrapped, and nothing of ours is compiled.

    model(batch) ─▶ hold ─┬─▶ as the user compiled it          no training, or a kind of batch too many
                          └─▶ compiled anew, cut by a plan     one plan for each kind of batch

The plan of a kind is made before its first step runs, by a dry pass. The user's own compiled call stays, for `remove`.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .._calls.values import tensors
from .._data.errors import NotApplicable
from .._data.goal import Goal
from .._record.optimizers.memory import OptimizerMemory, Optimizers, choose_optimizers, optimizer_memory
from .._record.optimizers.steps import OptimizerSteps
from .._torch import private as torch_private
from .._torch.devices import device_of
from .._torch.private import compiling as private
from ..solvers.errors import AutockptError, Infeasible
from .dry import trace
from .partition import Partition, eager_backend
from .plan import CompiledPlan, make_plan

_log = logging.getLogger("autockpt")

BACKENDS = ("aot_eager",)
"""Backends whose memory is predicted. Others allocate by rules of their own."""

MOST_KINDS = 4
"""So many kinds of batches get a plan each. The compiler itself gives up at eight variants of one function."""

Given = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRequest:
    """What a user asked for.

    Attributes:
        goal: the budget, or the lowest peak.
        optimizer: as `apply` takes it.
        solver: name of the solver.
        seconds: how long it may search, for each plan.
        strict: whether a kind of batch that no plan holds to the budget is an error.
    """

    goal: Goal
    optimizer: Optimizers | None = None
    solver: str = "auto"
    seconds: float = 3.0
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchKind:
    """One kind of batch: its plan, the call that is cut by it, and what stood beside the step when it was made."""

    plan: CompiledPlan
    run: Callable[..., Any]
    standing_bytes: int


class CompiledHold:
    """A compiled model that is held to a budget; what lives on from step to step.

    Args:
        request: what was asked for.
        settings: how the user compiled it.
        own: the user's compiled call.

    Attributes:
        settings, own: the same.
        plan: the plan of the last step; None before there is one.
    """

    def __init__(self, request: CompiledRequest, settings: private.CompileSettings, own: Callable[..., Any]) -> None:
        self.settings, self.own = settings, own
        self.plan: CompiledPlan | None = None
        self._request = request
        self._kinds: dict[object, _BatchKind] = {}
        self._steps = OptimizerSteps(lambda _: None)
        self._memory = OptimizerMemory()
        self._waiting: weakref.ref[torch.Tensor] | None = None
        self._said = False

    def listen(self, model: nn.Module) -> None:
        """See from now on which optimizers train the model."""
        self._steps.listen(model)
        self._memory = optimizer_memory_of(model, self._request.optimizer, ())

    def close(self) -> None:
        """See no optimizers any more."""
        self._steps.close()

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of the model: under the plan for its kind of batch if it trains.

        Raises:
            Infeasible: no plan meets the budget; the model is as it was compiled then.
        """
        if not _trains(model, (args, kwargs)):
            return self.own(*args, **kwargs)
        try:
            kind = self.prepare(model, (args, kwargs))
        except AutockptError:
            if not self._kinds or self._request.strict:
                release(model)
            raise
        if kind is None:
            return self.own(*args, **kwargs)
        if self._waiting is not None and self._waiting() is not None:
            self._tell(
                "a forward ran while an earlier one still waits for its backward, and a plan counts one of them: the "
                "budget may not hold."
            )
        result = kind.run(*args, **kwargs)
        trained = next((each for each in tensors((result,)) if each.requires_grad), None)
        if trained is not None:
            self._waiting = weakref.ref(trained)
            trained.register_hook(self._came_back)
        return result

    def _came_back(self, _: torch.Tensor) -> None:
        """Note that backward reached the last forward."""
        self._waiting = None

    def prepare(self, model: nn.Module, given: Given) -> _BatchKind | None:
        """Return the plan for a kind of batch, with what runs it; None if there are plans for too many kinds already.

        The plan is made if there is none, or if so much more is allocated by now that the one there exceeds the budget.
        """
        if self._steps.grown():
            self._memory = optimizer_memory_of(model, None, self._steps.optimizers)
        look, standing_bytes = _look(model, given), _standing_bytes(model, given) + self._memory.state_bytes
        known = self._kinds.get(look)
        budget_bytes = self._request.goal.budget_bytes
        if known is not None and budget_bytes is not None:
            more_bytes = max(standing_bytes - known.standing_bytes, 0)
            known = known if known.plan.peak_bytes + more_bytes <= budget_bytes else None
        if known is None and look not in self._kinds and len(self._kinds) >= MOST_KINDS:
            self._tell(
                f"{MOST_KINDS} kinds of batches have plans of their own, and this is another: its step runs as it was "
                "compiled, and the budget may not hold. Pad batches to fewer shapes."
            )
            return None
        if known is None:
            plan = self._plan(model, given, standing_bytes)
            _log.info("a plan for the compiled step: %s", plan)
            known = self._kinds[look] = _BatchKind(plan=plan, run=self._compiled(plan), standing_bytes=standing_bytes)
        self.plan = known.plan
        return known

    def _tell(self, what: str) -> None:
        """Say once that the budget may not hold, or raise where the user is strict."""
        if self._request.strict:
            raise NotApplicable(what)
        if not self._said:
            _log.warning(what)
            self._said = True

    def _compiled(self, plan: CompiledPlan) -> Callable[..., Any]:
        """Compile anew what the user compiled, cut by a plan. Another plan is another backend to the compiler."""
        run: Callable[..., Any] = torch.compile(
            self.settings.target,
            backend=eager_backend(Partition(plan)),
            dynamic=False,
            fullgraph=self.settings.fullgraph,
        )
        return run

    def _plan(self, model: nn.Module, given: Given, standing_bytes: int) -> CompiledPlan:
        """Make the plan for a kind of batch, of which nothing has run.

        Raises:
            Infeasible: no plan meets the budget for the first kind; later ones get the lowest plan, unless `strict`.
        """
        graphs, links = trace(getattr(model, "_orig_mod", model), *given)
        if not graphs:
            raise NotApplicable(
                "the compiler found nothing to train in this model: no graph of it requires gradients. "
                "TORCH_LOGS=graph_breaks lists where its graphs break."
            )
        goal = self._request.goal
        make = functools.partial(
            make_plan,
            graphs,
            links,
            static_bytes=standing_bytes,
            step_bytes=self._memory.step_bytes,
            solver=self._request.solver,
            seconds=self._request.seconds,
        )
        try:
            return make(goal.budget_bytes)
        except Infeasible as error:
            told = error.carrying(asked=goal.budget if isinstance(goal.budget, str) else "")
            if not self._kinds or self._request.strict:
                raise told from None
            self._tell(f"no plan holds this step to the budget, and it runs under the lowest one: {told}")
            return make(None)


def optimizer_memory_of(
    model: nn.Module, named: Optimizers | None, seen: Sequence[torch.optim.Optimizer]
) -> OptimizerMemory:
    """Return what the optimizers of a model hold: those that were seen to step, else the one that was named."""
    asked = [*seen] or named
    if asked is None:
        return OptimizerMemory()
    trained = {id(each) for each in model.parameters() if each.requires_grad}
    device = device_of(next(model.parameters()).device)
    return optimizer_memory(choose_optimizers(asked, model, seen=bool(seen)), trained, device)


def _standing_bytes(model: nn.Module, given: Given) -> int:
    """Return what stands beside a step on the device of a model: parameters, buffers, gradients, the batch."""
    device = next(model.parameters()).device
    held = [*model.parameters(), *model.buffers(), *tensors(given)]
    held += [each.grad for each in model.parameters() if each.grad is not None]
    storages = {
        torch_private.storage_key(each): each.untyped_storage().nbytes()
        for each in torch_private.parts(held)
        if each.device == device
    }
    return sum(storages.values())


def hold(model: nn.Module, request: CompiledRequest, inputs: object = None) -> None:
    """Hold a model that is compiled as a whole to a budget.

    Args:
        model: what ``torch.compile`` returned, or a module that was compiled by ``module.compile()``.
        request: what is asked for.
        inputs: a batch to make a plan for now; None to make it as the first step begins.

    Raises:
        Infeasible: no plan meets the budget for `inputs`.
        NotApplicable: it was compiled for symbolic sizes, is not on a CPU, or several processes train it.
    """
    before = held_by(model)
    settings = private.CompileSettings(model) if before is None else before.settings
    _refuse(model, settings)
    held = CompiledHold(request, settings, getattr(model, settings.attribute) if before is None else before.own)
    held.listen(model)
    if inputs is not None:
        held.prepare(model, _given(inputs))
    release(model)
    vars(model)[settings.attribute] = functools.partial(_call, held, weakref.ref(model))


def takes(model: nn.Module) -> bool:
    """Whether a model is compiled as a whole by a backend whose memory is predicted."""
    return held_by(model) is not None or private.CompileSettings(model).backend in BACKENDS


def refuse_held(model: nn.Module) -> None:
    """Refuse a compiled model that is held to a budget, where a plan of calls is asked for.

    Raises:
        NotApplicable: it is one; the message says what its plan is.
    """
    held = held_by(model)
    if held is not None:
        plan = "none yet: it is made as the first training step begins" if held.plan is None else held.plan
        raise NotApplicable(
            f"the model is held to its budget inside what was compiled, where operators run again and no calls. "
            f"Its plan is {plan}"
        )


def held_by(model: nn.Module) -> CompiledHold | None:
    """Return what holds a compiled model to its budget; None where nothing does."""
    for name in ("forward", torch_private.COMPILED_CALL):
        call = vars(model).get(name)
        if isinstance(call, functools.partial) and call.func is _call:
            held: CompiledHold = call.args[0]
            return held
    return None


def release(model: nn.Module) -> bool:
    """Give a compiled model its own call back; return whether it was held to a budget."""
    held = held_by(model)
    if held is None:
        return False
    vars(model)[held.settings.attribute] = held.own
    held.close()
    return True


def _call(held: CompiledHold, model: weakref.ref[nn.Module], /, *args: Any, **kwargs: Any) -> Any:
    """Stand in the place of a compiled call."""
    module = model()
    if module is None or torch.compiler.is_compiling():  # what is compiled around it takes it in
        return held.own(*args, **kwargs)
    return held.run(module, args, kwargs)


def _refuse(model: nn.Module, settings: private.CompileSettings) -> None:
    """Refuse what is not predicted: symbolic sizes, devices that round sizes up, and what several ranks share."""
    elsewhere = any(each.device.type != "cpu" for each in model.parameters())
    if elsewhere or torch_private.process_group():
        where = "not on a CPU" if elsewhere else "trained by several processes"
        raise NotApplicable(
            f"the model is compiled as a whole and {where}, and what its code takes there is not predicted. Apply to "
            "the model itself, apply(model, budget, inputs=batch, loss=loss), and compile it after that; or compile "
            "its blocks one by one."
        )
    if settings.dynamic:
        raise NotApplicable(
            "the model is compiled with dynamic=True, and a plan is for sizes that are known. Leave dynamic out: each "
            f"kind of batch then gets a plan of its own, {MOST_KINDS} kinds at most."
        )


def _given(inputs: object) -> Given:
    """Return a batch as the arguments of a call."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _trains(model: nn.Module, given: Given) -> bool:
    """Whether a call may be one of training."""
    return torch.is_grad_enabled() and (
        any(each.requires_grad for each in model.parameters()) or any(each.requires_grad for each in tensors(given))
    )


def _look(model: nn.Module, given: Given) -> object:
    """Return what two batches of one kind have in common: shapes, values that are no tensors, modes, autocast."""
    args, kwargs = given
    values = torch.utils._pytree.tree_leaves((args, kwargs))
    looks = tuple(
        (tuple(each.shape), each.dtype, each.requires_grad) if isinstance(each, torch.Tensor) else repr(each)
        for each in values
    )
    trained = tuple(each.requires_grad for each in model.parameters())
    return looks, (*kwargs,), trained, model.training, torch_private.any_autocast_enabled()
