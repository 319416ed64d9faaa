"""Two ranks of which one fails, or leaves, where the other one would go on; each returns what it trained and raised."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch

import autockpt
from tests.doors import Runners, rank_group

from .bad import applied, budget_for, own_of, told_of, wait_for
from .models import Shared, step, tokens, writer
from .pipelines import Parts

Group = rank_group.Group

STEPS, AT = 6, 4
"""Steps of a training, and the one in which something comes between: by then there is a plan."""


def _trained(
    rank: int, shared: Shared, asked: dict[str, Any] | None, between: Callable[[torch.nn.Module], Any], *, rows: int = 8
) -> tuple[list[Any], list[tuple[int, str, str]], bool, bool]:
    """Train, and go on with the next batch where a step fails.

    Args:
        rank: this one.
        shared: how the ranks share the model.
        asked: for `apply`; None for the plain training.
        between: is given the model that has the plan; returns a context for the step `AT`.
        rows: of the batch in that step.

    Returns:
        What each step made; the errors, each with its step; whether there was a plan before that step, and in the end.
    """
    wrapped, inner = applied(shared, asked)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    said, errors, planned = list[Any](), list[tuple[int, str, str]](), False
    for number in range(STEPS):
        planned = planned or (number == AT and autockpt.plan_of(inner) is not None)
        batch = tokens(own_of(rank, shared), number, rows=rows if number == AT else 8)
        with between(inner) if number == AT else nullcontext():
            try:
                said.append(step(wrapped, optimizer, [batch], 100 + number))
            except (MemoryError, autockpt.AutockptError) as error:
                errors.append((number, type(error).__name__, str(error)))
    return said, errors, planned, autockpt.plan_of(inner) is not None


def failing_as_a_step_begins(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Have one rank fail as it begins to record a larger batch, by an error that is none of the library's."""
    wait_for(20)
    failing = mock.patch.object(Runners, "recorded", side_effect=MemoryError("none left"))

    def between(_: torch.nn.Module) -> Any:
        return failing if rank == 1 else nullcontext()

    said, errors, before, after = _trained(rank, shared, budget_for(shared), between, rows=10)
    plain, *_ = _trained(rank, shared, None, lambda _: mock.patch("tests.ranks.leaving.step", side_effect=MemoryError))
    return {"errors": errors, "planned": (before, after), "same": said == plain}


def patched_between(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Have somebody patch forwards over the library's on one rank, before a larger batch needs another plan."""
    wait_for(20)
    said, errors, planned = list[list[Any]](), list[str](), list[bool]()
    for asked in (None, budget_for(shared)):
        wrapped, inner = applied(shared, asked)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        said.append([])
        for number in range(AT + 5):
            if number == AT:
                planned.append(autockpt.plan_of(inner) is not None)
                for module in inner.modules() if rank == 1 and asked else ():
                    if "forward" in vars(module) and module is not inner:
                        module.forward = partial(module.forward)
            batch = tokens(own_of(rank, shared), number, rows=8 if number < AT else 10)
            try:
                said[-1].append(step(wrapped, optimizer, [batch], 100 + number))
            except autockpt.AutockptError as error:
                errors.append(f"{number}: {error}")
        planned.append(autockpt.plan_of(inner) is not None)
    return {"errors": errors, "planned": planned, "same": said[0] == said[1]}


def taking_it_off(rank: int, *, shared: Shared) -> dict[str, Any]:
    """Have one rank take its budget off when both have a plan."""
    wait_for(20)

    def between(model: torch.nn.Module) -> Any:
        if rank == 1:
            autockpt.remove(model)
        return nullcontext()

    said, errors, before, after = _trained(rank, shared, budget_for(shared), between)
    plain, *_ = _trained(rank, shared, None, lambda _: nullcontext())
    return {"errors": errors, "planned": (before, after), "same": said == plain}


def failing_on_a_given_batch(rank: int, *, error: type[BaseException]) -> dict[str, Any]:
    """Give both ranks a batch to plan on, of which one rank's makes the model fail."""
    wait_for(20)
    model = writer()
    if rank == 1:
        model.norm.register_forward_pre_hook(mock.Mock(side_effect=error("a bad sample")))
    wrapped = Shared(by="ddp").wrap(model, [])
    return told_of(lambda: autockpt.apply(wrapped, 8_000_000, inputs=tokens(rank, 0)))


def given_before_it_is_wrapped(rank: int) -> dict[str, Any]:
    """Plan on a batch on each rank, wrap the model, and train; return in how many rounds the last two steps agreed."""
    wait_for(20)
    model = autockpt.apply(writer(), 8_000_000, inputs=tokens(rank, 0))
    wrapped = Shared(by="ddp").wrap(model, [])
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    with mock.patch.object(Group, "agree", autospec=True, side_effect=Group.agree) as agree:
        rounds = []
        for number in range(STEPS):
            step(wrapped, optimizer, [tokens(rank, number)], 100 + number)
            rounds.append(agree.call_count)
    return {"rounds": rounds, "planned": autockpt.plan_of(model) is not None}


def failing_stage(rank: int, *, which: int) -> dict[str, Any]:
    """Have one stage of a pipeline fail as its first step begins; both train on plainly after that."""
    wait_for(20)
    model = Parts(rank, "1f1b")
    autockpt.apply(model.asked, 10**9)
    _, runs = model.wrapped(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    failing = mock.patch.object(
        Runners, "recorded", side_effect=autockpt.NotApplicable("layers that nobody can record")
    )
    errors: list[tuple[int, str]] = []
    for number in range(3):
        optimizer.zero_grad()
        args, named = model.given(tokens(0, number, rows=16))
        with failing if rank == which and not number else nullcontext():
            runs.step(*args, **named)
        try:
            optimizer.step()
        except autockpt.AutockptError as error:
            errors.append((number, str(error)))
    return {"errors": errors, "planned": autockpt.plan_of(model.asked) is not None}
