"""Runs a case plain and planned, and holds one against the other, bit for bit."""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

import autockpt
from autockpt import NotApplicable, Plan, Profile, ProfilingError, ReplayError
from tests.doors import install, set_aside, split_key
from tests.fuzz.boxes import flat
from tests.fuzz.hidden import hooked
from tests.fuzz.leaves import BATCH, STEPS, WIDTH
from tests.fuzz.plans import HIDDEN_STATE, OTHER_WAYS, chosen_plan, reasons_beyond_replay
from tests.fuzz.states import counts_in
from tests.fuzz.tree import Case, build, kinds_in
from tests.twin import counting_replays, differing, generators, left_by, listening

__all__ = ["Difference", "PlainFails", "Verdict", "check"]

Outcome = dict[str, object]

SEED, SEEDS = 7, range(8)
"""Of the steps that are compared, and of those that ask whether a plain step may fail."""


class PlainFails(Exception):
    """The drawn model cannot be trained at all: it changes in place what its own backward needs."""


class Difference(AssertionError):
    """The planned step is not the plain one."""


@dataclass(frozen=True)
class Verdict:
    """What became of a case that has no difference.

    Attributes:
        result: ``exact``; ``refused`` (exact, and a call is named that is kept from then on); ``loud`` (a plan by
            hand, or one that no longer fits what the model does, ended in an error); ``beyond replay`` (it differed,
            for a documented reason, and nothing was checked); ``no candidate``; ``not recorded``.
        detail: the error, or the reason.
        segments: number of calls of each segment of the plan.
        selective: how many of them keep or skip units.
        glued: how many of them contain torch functions of their callers' own code.
        cut: how many of them are replayed in parts, and of how many replays leave calls inside to others.
        replays: how many frames were replayed.
        refused: the reasons of the profile's refused calls.
    """

    result: str
    detail: str = ""
    segments: tuple[int, ...] = ()
    selective: int = 0
    glued: int = 0
    cut: tuple[int, int] = (0, 0)
    replays: int = 0
    refused: tuple[str, ...] = ()


def check(case: Case) -> Verdict:
    """Train the case's model plain and planned.

    Raises:
        PlainFails: the plain step raises, or may.
        Difference: the steps differ, or the planned one fails where it must not.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about what the models do
        try:
            if case.how.offload or case.how.flip:
                # Hooks take autograd's own check away, and flags that change hide from it what the recorder runs into.
                bare = replace(case, how=replace(case.how, offload=False, flip=False))
                _train(bare, build(bare))
            expected = _train(case, build(case))
        except Exception as error:
            raise PlainFails(str(error)) from error
        model = build(case)
        try:
            profile = _profile(case, model)
            plan = chosen_plan(case, profile)
        except ProfilingError as error:
            return Verdict("not recorded", str(error))
        except CheckpointError as error:
            raise PlainFails("a checkpoint of the model's own does not always repeat itself") from error
        except Exception as error:
            if why := _fails_by_chance(case):
                raise PlainFails(why) from error
            raise Difference(f"{case!r} cannot be planned: {type(error).__name__}: {error}") from error
        return _planned(case, model, profile, plan, expected)


def _planned(case: Case, model: nn.Module, profile: Profile, plan: Plan, expected: Outcome) -> Verdict:
    refused = tuple(profile.refused("call").values())
    if not plan.segments:
        return Verdict("no candidate", refused=refused)
    case = replace(case, calls=tuple(segment.calls for segment in plan.segments))
    if any(segment.keep or segment.skip for segment in plan.segments):
        case = replace(
            case,
            keep=tuple(segment.keep for segment in plan.segments),
            skip=tuple(segment.skip for segment in plan.segments),
        )
    if any(segment.cuts for segment in plan.segments):
        case = replace(case, cuts=tuple(segment.cuts for segment in plan.segments))
    if any(segment.inner for segment in plan.segments):
        case = replace(case, inner=tuple(segment.inner for segment in plan.segments))
    lengths = tuple(len(segment.calls) for segment in plan.segments)
    selective = sum(bool(segment.keep or segment.skip) for segment in plan.segments)
    glued = sum(any(split_key(key)[1] for key in segment.calls) for segment in plan.segments)
    cut = sum(any(segment.cuts) for segment in plan.segments), sum(bool(segment.inner) for segment in plan.segments)
    kinds = kinds_in(case.tree)
    by_hand = case.choice.blind or case.choice.units == "names"
    beyond = reasons_beyond_replay(plan, profile) if case.choice.blind else []
    if kinds & OTHER_WAYS and kinds & HIDDEN_STATE:
        beyond.append("state that the recorded step may not have come across")
    if kinds & HIDDEN_STATE:
        beyond.append("state that only a comparison sees")
    # Torch's own checkpoint runs in backward too, and with other training flags changes buffers there.
    flipped = case.how.flip and kinds & {"Checkpointed", "CheckpointedReentrant"}
    doubtful = by_hand or flipped or kinds & OTHER_WAYS or (case.how.check and kinds & HIDDEN_STATE)
    if case.how.check:
        beyond = []
    with counting_replays() as replays, listening() as said:
        try:
            install(model, plan, "always" if case.how.check else "never")
            found = _train(case, model)
        except Exception as error:
            if doubtful and (_is_loud(error) or (beyond and not isinstance(error, AssertionError))):
                return Verdict(
                    "loud", f"{type(error).__name__}: {error}", lengths, selective, glued, cut, len(replays), refused
                )
            raise Difference(
                f"{case!r} fails where the plain step does not: {type(error).__name__}: {error}"
            ) from error
    different = differing(expected, found)
    kept = [each for each in said if "is kept from now on" in each]
    if not different:
        if kept and not doubtful:
            raise Difference(f"{case!r} is exact, and yet it is said that {kept[0]}")
        result, why = ("refused", _reason(kept[0])) if kept else ("exact", "")
        return Verdict(result, why, lengths, selective, glued, cut, len(replays), refused)
    if beyond:
        return Verdict("beyond replay", beyond[0], lengths, selective, glued, cut, len(replays), refused)
    raise Difference(f"{case!r} differs in {', '.join(sorted(different)[:6])} ({len(different)} in all)")


def _reason(said: str) -> str:
    """Why a call is kept, without names."""
    return re.sub(r"tree\S*", "...", said.partition(", since it ")[2].partition(";")[0].partition("(Changed: ")[0])


def _is_loud(error: Exception) -> bool:
    return isinstance(error, (ReplayError, NotApplicable)) or (
        isinstance(error, RuntimeError) and ("inplace operation" in str(error) or "in-place operation" in str(error))
    )


def _profile(case: Case, model: nn.Module) -> Profile:
    torch.manual_seed(1)
    with _ambient(case, model):
        return autockpt.profile(model, _batch(case, 0), loss=_loss)


def _fails_by_chance(case: Case) -> str:
    """Return how a plain step fails where other random numbers are drawn, as by layers that are dropped; else ""."""
    if OTHER_WAYS.isdisjoint(kinds_in(case.tree)):
        return ""
    bare = replace(case, how=replace(case.how, offload=False, flip=False))
    for seed in SEEDS:
        try:
            _train(bare, build(bare), seed)
        except Exception as error:
            return str(error)
    return ""


def _train(case: Case, model: nn.Module, seed: int = SEED) -> Outcome:
    """Take two steps; return everything that they leave behind."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    left: Outcome = {}
    for step in range(2):
        if not case.how.keep_gradients:
            model.zero_grad()
        batches = [_batch(case, step + number) for number in range(case.how.micro)]
        outputs = [_forward(case, model, batch) for batch in batches]
        loss = torch.stack([_loss(output) for output in outputs]).sum()
        with contextlib.ExitStack() as stack:
            if case.how.flip:
                stack.enter_context(_flipped(model))
            if case.how.off:
                stack.enter_context(set_aside(model))
            _backward(case, model, loss)
        for number, output in enumerate(outputs):
            left |= {f"step {step} output {number}.{i}": t.detach().clone() for i, t in enumerate(flat(output))}
        left |= {f"step {step} gradient of batch {number}": batch.grad for number, batch in enumerate(batches)}
        here = {**left_by(model), **generators(), **_own_generators(model), **counts_in(model)}
        for parameter in model.parameters():
            if parameter.grad is not None:
                with torch.no_grad():
                    parameter.sub_(parameter.grad.clamp(-1, 1), alpha=0.01)
        left |= {f"step {step} {name}": each for name, each in here.items()}
    return left


def _batch(case: Case, number: int) -> Tensor:
    values = torch.linspace(-1, 1 + number, BATCH * STEPS * WIDTH).sin().mul(1 + number / 4)
    return values.reshape(BATCH, STEPS, WIDTH).requires_grad_(case.how.input_gradient)


def _forward(case: Case, model: nn.Module, batch: Tensor) -> Any:
    with _ambient(case, model):
        if not case.how.swapped:
            return model(batch)
        other = {name: parameter * 1.1 for name, parameter in model.named_parameters()}
        return torch.func.functional_call(model, other, (batch,))


def _backward(case: Case, model: nn.Module, loss: Tensor) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if case.how.penalty:
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
        loss = loss + torch.stack([gradient.float().square().sum() for gradient in gradients]).sum()
    some = parameters[::2] if case.how.some else None
    for repeat in range(case.how.backwards):
        loss.backward(retain_graph=repeat + 1 < case.how.backwards, inputs=some)


@contextlib.contextmanager
def _ambient(case: Case, model: nn.Module) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if case.how.hooks:
            stack.enter_context(hooked(model))
        if case.how.autocast:
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        if case.how.offload:
            stack.enter_context(torch.autograd.graph.save_on_cpu())
        yield


@contextlib.contextmanager
def _flipped(model: nn.Module) -> Iterator[None]:
    """Give every module the other training flag."""
    flags = [(module, module.training) for module in model.modules()]
    for module, flag in flags:
        module.training = not flag
    yield
    for module, flag in flags:
        module.training = flag


def _loss(outputs: Any) -> Tensor:
    """Weigh every number of the outputs differently."""
    total = torch.zeros(())
    for tensor in flat(outputs):
        total = total + (tensor.float() * torch.linspace(0.5, 1.5, tensor.numel()).view(tensor.shape)).sum()
    return total / 8


def _own_generators(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"generator {name}.{key}": value.get_state()
        for name, module in model.named_modules()
        for key, value in module.__dict__.items()
        if isinstance(value, torch.Generator)
    }
