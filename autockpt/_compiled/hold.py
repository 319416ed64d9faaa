"""Holding a compiled model to a budget: its compiled call is wrapped, and nothing of ours is compiled.

    model(batch) ─▶ hold ─┬─▶ as the user compiled it          no training, or a kind of batch too many
                          └─▶ compiled anew, cut by a plan     one plan for each kind of batch

The plan of a kind is made before its first step runs, by a dry pass. The user's own compiled call stays, for `remove`.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

from .._calls.roots import title
from .._calls.values import tensors
from .._data.compiled_plan import CompiledPlan
from .._data.errors import NotApplicable
from .._data.goal import Goal
from .._ranks import One, ranks_of
from .._ranks.buckets import as_in_step
from .._ranks.together import done_together
from .._record.optimizers.memory import OptimizerMemory
from .._record.optimizers.steps import OptimizerSteps, blank
from .._torch import private as torch_private
from .._torch.private import compiling as private
from ..solvers.errors import AutockptError, Infeasible
from ..solvers.units import format_like
from .batches import (
    BatchKind,
    BatchLook,
    Given,
    Seen,
    given_of,
    look_of_batch,
    may_train,
    optimizer_memory_of,
    standing_bytes_of,
)
from .cut import refuse_other_graphs
from .dry import trace
from .partition import Partition, compiled
from .plan import make_plan, plan_by_code, prepare
from .refusals import BACKENDS, CompiledRequest, refuse, refuse_shards, refuse_strict

_log = logging.getLogger("autockpt")

MOST_KINDS = 4
"""So many kinds of batches get a plan each. The compiler itself gives up at eight variants of one function."""

Told = Callable[["CompiledHold"], object]
"""Is told of a forward of training under a plan as it begins."""


class CompiledHold:
    """A compiled model that is held to a budget; what lives on from step to step.

    Args:
        request: what was asked for.
        settings: how the user compiled it.
        own: the user's compiled call.
        trains: told of each forward of training that begins.

    Attributes:
        settings, own: the same.
        what: the model and its budget, as part of a sentence.
        compiled: whether the model is compiled as a whole.
        holds: whether the model has the budget.
        plan: the plan of the last step; None before there is one.
        made: the plans that were made so far, oldest first, each with the reason.
        steps: how many forwards of training ran under a plan.
    """

    compiled = True

    def __init__(
        self,
        request: CompiledRequest,
        settings: private.CompileSettings,
        own: Callable[..., Any],
        trains: Told,
    ) -> None:
        self.settings, self.own = settings, own
        self.what, self.holds = "a compiled model", False
        self._trains = trains
        self.plan: CompiledPlan | None = None
        self.made: list[tuple[CompiledPlan, str]] = []
        self.steps = 0
        self._request = request
        self._kinds: dict[BatchLook, BatchKind] = {}
        self._steps = OptimizerSteps(self._stepped)
        self._unseen, self._memory = 0, OptimizerMemory()
        self._waiting: weakref.ref[torch.Tensor] | None = None
        self._said, self._several = set[str](), False

    @property
    def goal(self) -> Goal | None:
        """What was asked for; None where a plan was given."""
        return self._request.goal

    @property
    def waits(self) -> bool:
        """Whether a forward still waits for its backward."""
        return self._waiting is not None and self._waiting() is not None

    def listen(self, model: nn.Module, seen: Seen) -> None:
        """See from now on which optimizers train the model, beside those that were seen before."""
        goal = self._request.goal
        asked = f" ({format_like(goal.budget_bytes, goal.budget)})" if goal is not None and goal.budget_bytes else ""
        self.what, self.holds = f"{title(getattr(model, '_orig_mod', model))}{asked}", True
        self._steps.listen(model)
        self._memory = optimizer_memory_of(model, self._request.optimizer, seen)

    def close(self) -> None:
        """See no optimizers any more."""
        self.holds = False
        self._steps.close()

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of the model: under the plan for its kind of batch if it trains.

        Raises:
            Infeasible: no plan meets the budget; the model is as it was compiled then.
        """
        if not may_train(model, (args, kwargs)):
            return self.own(*args, **kwargs)
        try:
            kind = self._prepared_together(model, (args, kwargs))
        except AutockptError:
            if not self._kinds or self._request.strict:
                release(model)
            raise
        if kind is None:
            return self.own(*args, **kwargs)
        self._trains(self)
        if self.waits:
            self._tell(
                "a forward ran while an earlier one still waits for its backward, and a plan counts one of them: the "
                "budget may not hold."
            )
        self.steps += 1
        result = kind.run(*args, **kwargs)
        self._wait_for(result)
        return result

    def _wait_for(self, result: Any) -> None:
        """Note a forward, which waits until backward reaches any of what it returned."""
        trained = [each for each in tensors((result,)) if each.requires_grad]
        self._waiting = weakref.ref(trained[0]) if trained else self._waiting
        for each in trained:
            each.register_hook(self._came_back)

    def _came_back(self, _: torch.Tensor) -> None:
        """Note that backward reached the last forward."""
        self._waiting = None
        if torch_private.keeps_graph():
            self._tell(
                "a backward keeps its graph for another (retain_graph=True), and a plan counts one backward: the "
                "budget may not hold."
            )

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer stepped. Where no forward came before the second time, the model is inside another."""
        if self._kinds or blank(optimizer):
            return
        self._unseen += 1
        if self._unseen > 1:
            self._tell(
                "an optimizer stepped twice, and no forward of the compiled model was seen: what is compiled around "
                "it takes it in, and its steps run without a plan. Apply to what is compiled outermost: "
                "autockpt.apply(torch.compile(outer), budget)."
            )

    def _prepared_together(self, model: nn.Module, given: Given) -> BatchKind | None:
        """Return the plan for a kind of batch. The first one is made by all ranks, or by none: else one would wait.

        Later ranks plan by themselves, and nothing is raised on one of them alone.
        """
        ranks = One() if self._several else ranks_of(model)
        if not self._kinds:
            refuse_shards(model)
        if len(ranks.members) == 1:
            return self.prepare(model, given)
        self._several, asked = True, self._request.compared()
        prepare = functools.partial(self.prepare, model, given)
        try:
            refuse_strict(self._request, ranks)
            return done_together(ranks, prepare, self._kinds.clear, asked=lambda _: asked, meanwhile="planned")
        except BaseException:  # a rank that plans once more would wait for the others
            self._kinds.clear()
            release(model)
            raise

    def prepare(self, model: nn.Module, given: Given) -> BatchKind | None:
        """Return the plan for a kind of batch, with what runs it; None if there are plans for too many kinds already.

        The plan is made if there is none, or if so much more is allocated by now that the one there exceeds the budget.
        """
        if self._steps.grown():
            self._memory = optimizer_memory_of(model, None, self._steps.optimizers)
        standing_bytes = standing_bytes_of(model, given) + self._memory.state_bytes
        look = look_of_batch(model, given)
        known = self._kinds.get(self._covering(look))
        budget_bytes = None if self._request.goal is None else self._request.goal.budget_bytes
        if known is not None and budget_bytes is not None:
            more_bytes = max(standing_bytes - known.standing_bytes, 0)
            # Where nothing more stands, a plan above the budget is the lowest one, and would be made again each step.
            known = known if not more_bytes or known.plan.peak_bytes + more_bytes <= budget_bytes else None
        if known is None and look not in self._kinds and len(self._kinds) >= MOST_KINDS:
            self._tell(
                f"{MOST_KINDS} kinds of batches have plans of their own, and this is another: its step runs as it was "
                "compiled, and the budget may not hold. Pad batches to fewer shapes."
            )
            return None
        if known is None:
            known = self._kinds[look] = self._new(model, given, standing_bytes, again=look in self._kinds)
        self.plan = known.plan
        return known

    def _covering(self, look: BatchLook) -> BatchLook:
        """Return the newest kind whose plan and code do for a batch: its own, or with symbolic sizes a larger one."""
        covering = (each for each in reversed(self._kinds) if self.settings.dynamic and each.covers(look))
        return look if look in self._kinds else next(covering, look)

    def _new(self, model: nn.Module, given: Given, standing_bytes: int, *, again: bool) -> BatchKind:
        """Make a plan for a kind of batch, and compile anew.

        The call runs as it was where a plan was given for others, or where other ranks would wait for an error.
        """
        try:
            with as_in_step(getattr(model, "_orig_mod", model)) as inside:
                plan = self._plan(inside, given, standing_bytes)
        except NotApplicable as error:
            other = self.plan if self._several else self._request.plan
            if other is None or not self._kinds:
                raise
            self._tell(f"a step runs as it was compiled, and the budget may not hold: {error}")
            return BatchKind(plan=other, run=self.own, standing_bytes=standing_bytes)
        reason = "more stands beside the step" if again else "this kind of batch came first"
        self.made.append((plan, "it was given" if self._request.plan is not None else reason))
        _log.info("a plan for the compiled step: %s", plan)
        return BatchKind(plan=plan, run=self._compiled(plan), standing_bytes=standing_bytes)

    def _tell(self, what: str) -> None:
        """Say once of each reason that the budget may not hold, or raise where the user is strict."""
        if self._request.strict:
            raise NotApplicable(what)
        if what not in self._said:
            _log.warning(what)
            self._said.add(what)

    def _compiled(self, plan: CompiledPlan) -> Callable[..., Any]:
        """Compile anew what the user compiled, cut by a plan. Another plan is another backend to the compiler."""
        settings = self.settings
        return compiled(
            settings.target,
            Partition(plan),
            dynamic=settings.dynamic,
            fullgraph=settings.fullgraph,
            inductor=settings.inductor,
        )

    def _plan(self, inside: nn.Module, given: Given, standing_bytes: int) -> CompiledPlan:
        """Make the plan for a kind of batch, of which nothing has run; `inside` is what was compiled.

        Raises:
            Infeasible: no plan meets the budget for the first kind; later ones get the lowest plan, unless `strict`.
        """
        graphs, links = trace(inside, *given, dynamic=self.settings.dynamic, inductor=self.settings.inductor)
        if not graphs:
            raise NotApplicable(
                "the compiler found nothing to train in this model: no graph of it requires gradients. "
                "TORCH_LOGS=graph_breaks lists where its graphs break."
            )
        if self._request.plan is not None:
            refuse_other_graphs(self._request.plan, graphs)
            return self._request.plan
        asked: dict[str, Any] = {
            "static_bytes": standing_bytes,
            "step_bytes": self._memory.step_bytes,
            "solver": self._request.solver,
            "seconds": self._request.seconds,
        }
        if self.settings.inductor is None:
            make: Callable[[int | None], CompiledPlan] = functools.partial(make_plan, graphs, links, **asked)
        else:
            from .lowered import lower  # who compiles otherwise loads no inductor

            budget_bytes = None if self.goal is None else self.goal.budget_bytes
            # Inductor fuses what would not fit alone, and the budget holds while a plan is made, too.
            room_bytes = None if budget_bytes is None else max(budget_bytes - standing_bytes, 0)
            prepared = prepare(graphs, links, room_bytes=room_bytes, **asked)
            read = functools.partial(lower, inside, given, settings=self.settings, step_bytes=self._memory.step_bytes)
            make = functools.partial(plan_by_code, prepared, read)
        return msgspec.structs.replace(self._kept(make), model=type(inside).__name__, goal=self._request.goal)

    def _kept(self, make: Callable[[int | None], CompiledPlan]) -> CompiledPlan:
        """Make a plan for the budget; where none holds it, one of the lowest peak, or an error."""
        goal = self._request.goal
        assert goal is not None
        try:
            return make(goal.budget_bytes)
        except Infeasible as error:
            told = error.carrying(asked=goal.budget if isinstance(goal.budget, str) else "")
            if not self._kinds or self._request.strict:
                raise told from None
            self._tell(f"no plan holds this step to the budget, and it runs under the lowest one: {told}")
            return make(None)


def hold(model: nn.Module, request: CompiledRequest, inputs: object, trains: Told, seen: Seen = ()) -> None:
    """Hold a model that is compiled as a whole to a budget.

    Args:
        model: what ``torch.compile`` returned, or a module that was compiled by ``module.compile()``.
        request: what is asked for.
        inputs: a batch to make a plan for now; None to make it as the first step begins.
        trains: told of each forward of training under a plan as it begins.
        seen: optimizers that have trained it.

    Raises:
        Infeasible: no plan meets the budget for `inputs`.
        NotApplicable: it is not on a CPU, is sharded over ranks, or several processes train and `inputs` are given.
    """
    before = held_by(model)
    settings = private.CompileSettings(model) if before is None else before.settings
    refuse(model, settings, given=inputs is not None)
    held = CompiledHold(request, settings, getattr(model, settings.attribute) if before is None else before.own, trains)
    held.listen(model, seen)
    if inputs is not None:
        held.prepare(model, given_of(inputs))
    release(model)
    vars(model)[settings.attribute] = functools.partial(_call, held, weakref.ref(model))


def hold_next(model: nn.Module, request: CompiledRequest, before: Callable[[], Seen], trains: Told) -> bool:
    """Hold a model that is compiled as a whole to a budget as its next forward begins; return whether it can be held.

    Args:
        model: as `hold` takes it.
        request: what is asked for.
        before: runs first, takes off what holds the model now, and returns what optimizers it saw.
        trains: as `hold` takes it.
    """
    settings, reference = private.CompileSettings(model), weakref.ref(model)
    try:
        refuse(model, settings)
    except NotApplicable:
        return False
    own = getattr(model, settings.attribute)

    def first(*args: Any, **kwargs: Any) -> Any:
        module = reference()
        if module is None or torch.compiler.is_compiling():
            return own(*args, **kwargs)
        vars(module)[settings.attribute] = own
        hold(module, request, None, trains, before())
        return vars(module)[settings.attribute](*args, **kwargs)

    vars(model)[settings.attribute] = first
    return True


def takes(model: nn.Module) -> bool:
    """Whether a model is compiled as a whole by a backend whose memory is predicted."""
    return held_by(model) is not None or private.CompileSettings(model).backend in BACKENDS


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
