"""Adversarial training: an attack's forwards and backwards run in eval mode, and are steps as all others are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.doors import MOST_FORWARDS, governor_of
from tests.loops.models import deep, network
from tests.loops.twin import Run, held, one, steps, train

Attack = Callable[[Run, Tensor, Tensor], Tensor]


def targets(batch: Tensor) -> Tensor:
    return (batch[:, :8] * 3).argmax(-1)


def fgsm(run: Run, batch: Tensor, wanted: Tensor) -> Tensor:
    """One step of the gradient's sign, by a backward that reaches the weights too."""
    run.model.eval()
    given = batch.detach().requires_grad_()
    nn.functional.cross_entropy(run.model(given), wanted).backward()
    assert given.grad is not None
    found = (given + 0.1 * given.grad.sign()).detach()
    run.note_gradients()
    run.model.zero_grad()
    run.model.train()
    return nn.functional.cross_entropy(run.model(found), wanted)


def pgd(run: Run, batch: Tensor, wanted: Tensor) -> Tensor:
    """Three steps inside a ball, by the input's gradient alone."""
    run.model.eval()
    found = batch + 0.01 * torch.randn_like(batch)
    for _ in range(3):
        found.requires_grad_()
        loss = nn.functional.cross_entropy(run.model(found), wanted)
        (slope,) = torch.autograd.grad(loss, found)
        found = (batch + (found + 0.05 * slope.sign() - batch).clamp(-0.1, 0.1)).detach()
    run.model.train()
    return nn.functional.cross_entropy(run.model(found), wanted)


def trades(run: Run, batch: Tensor, wanted: Tensor) -> Tensor:
    """What is attacked is how far outputs are from those of the clean batch, whose graph gets no backward."""
    run.model.eval()
    divergence = nn.KLDivLoss(reduction="batchmean")
    found = batch + 0.01 * torch.randn_like(batch)
    for _ in range(3):
        found.requires_grad_()
        loss = divergence(run.model(found).log_softmax(1), run.model(batch).softmax(1))
        (slope,) = torch.autograd.grad(loss, found)
        found = (batch + (found + 0.05 * slope.sign() - batch).clamp(-0.1, 0.1)).detach()
    run.model.train()
    clean = run.model(batch)
    robust = divergence(run.model(found).log_softmax(1), clean.softmax(1))
    both: Tensor = nn.functional.cross_entropy(clean, wanted) + 6 * robust
    return both


def loop(attack: Attack, run: Run) -> None:
    for batch in steps(8):

        def work(batch: Tensor = batch) -> Tensor:
            loss = attack(run, batch, targets(batch))
            loss.backward()
            run.update()
            return loss

        run.step(work, batch)


ATTACKS: dict[str, Attack] = {"FGSM": fgsm, "PGD": pgd, "TRADES": trades}


@pytest.mark.parametrize(("attack", "budget"), [("FGSM", 0.6), ("PGD", 0.6), ("TRADES", 0.4)])
def test_an_attack_in_eval_mode_is_planned_too(attack: str, budget: float) -> None:
    """Its forwards were in no plan, and steps 1 to 3 stood up to 1.37 of the budget.

    The graph of TRADES' clean outputs gets no backward, and none of it was freed: below 0.63 there was no plan.
    """
    found = held(deep, partial(loop, ATTACKS[attack]), budget=budget)
    assert found.said == ""


def evaluate(run: Run, count: int) -> None:
    """With gradients on, and a name for the last loss: its graph is there as the next forward begins."""
    run.model.eval()
    total = 0.0
    for batch in steps(count, 64):
        loss = nn.functional.cross_entropy(run.model(batch), targets(batch))
        total += loss.item()
    run.note(f"evaluated after {len(run.planned)}", torch.tensor(total))
    run.model.train()


@pytest.mark.parametrize("count", [3, 2 * MOST_FORWARDS])
def test_an_evaluation_with_gradients_on_by_accident_is_no_step(count: int) -> None:
    def loop(run: Run) -> None:
        for batch in steps():
            train(run, [batch])
            evaluate(run, count)

    found = held(network, loop)
    assert found.said == ""


def test_an_evaluation_that_is_known_is_not_recorded() -> None:
    model, (batch,) = autockpt.apply(network(), "1GB").eval(), steps(1, 64)
    recorded: list[int] = []
    for _ in range(3 * MOST_FORWARDS):
        model(batch)
        governor: Any = governor_of(model)
        recorded.append(governor._step is not None)
    assert recorded == [True] * MOST_FORWARDS + [False] * 2 * MOST_FORWARDS


def test_an_attack_after_evaluations_of_its_kind_is_noticed() -> None:
    """Its first forward is taken for one of an evaluation, and from the next on it is a step."""

    def loop(run: Run) -> None:
        for number, batch in enumerate(steps(12)):
            if number < 4:
                train(run, [batch])
                evaluate(run, 2 * MOST_FORWARDS)
                continue

            def work(batch: Tensor = batch) -> Tensor:
                run.model.eval()
                nn.functional.cross_entropy(run.model(batch), targets(batch)).backward()
                run.note_gradients()
                run.model.zero_grad()
                run.model.train()
                return one(run, batch)

            run.unmeasured = frozenset({5})
            run.step(work, batch)

    found = held(network, loop)
    assert found.said == ""


def test_a_training_in_eval_mode_is_planned() -> None:
    """Fine-tuning with BatchNorm and dropout at rest: it was said that no step is planned for."""

    def loop(run: Run) -> None:
        run.model.eval()
        train(run, steps())

    found = held(network, loop)
    assert found.said == ""
