"""Steps in which a graph outlives a backward: a generator's, while its critics learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.loops.twin import Run, held, steps

ROWS = 1024


def tower(depth: int = 4, width: int = 32) -> nn.Sequential:
    blocks = (nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth))
    return nn.Sequential(*blocks)


class Parts(nn.Module):
    """Several networks, of which a forward runs one."""

    def __init__(self, *names: str, **others: nn.Module) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, tower())
        for name, part in others.items():
            self.add_module(name, part)

    def forward(self, which: str, hidden: Tensor) -> Tensor:
        part: nn.Module = self.get_submodule(which)
        made: Tensor = part(hidden)
        return made


def pair() -> nn.Module:
    return Parts("maker", "critic")


def with_sides() -> nn.Module:
    return Parts("maker", "critic", left=tower(6), right=tower(6))


class Several(torch.optim.SGD):
    """One optimizer for each of some parts; by itself it does nothing, and has what they have."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__([nn.Parameter(torch.zeros(1))])
        self.own = {name: torch.optim.Adam(part.parameters(), lr=1e-3) for name, part in model.named_children()}

    def update(self, run: Run, *names: str) -> None:
        """Let some of them step."""
        run.note_gradients()
        for name in names:
            self.own[name].step()
            self.state.update({(name, key): value for key, value in self.own[name].state.items()})  # type: ignore[misc]
        run.model.zero_grad()


def update(run: Run, *names: str) -> None:
    assert isinstance(run.optimizer, Several)
    run.optimizer.update(run, *names)


def repeated(run: Run, work: Callable[[Tensor, int], Tensor], count: int = 9) -> None:
    """Steps, each of which measures what it adds and notes what it computes."""
    for number, batch in enumerate(steps(count, rows=ROWS)):
        run.step(partial(work, batch, number), batch)


def without_an_optimizer(run: Run) -> None:
    def work(batch: Tensor, _: int) -> Tensor:
        made = run.model("maker", batch)
        judged: Tensor = run.model("critic", made.detach()).square().mean()
        judged.backward()
        run.note_gradients()
        run.model.zero_grad()
        fooled: Tensor = (1 - run.model("critic", made)).square().mean()
        fooled.backward()
        run.note_gradients()
        run.model.zero_grad()
        return torch.stack([judged, fooled]).detach()

    repeated(run, work)


def dcgan(run: Run) -> None:
    """Two optimizers in turn; the critic sees what is real, then what is made, then that again for the maker."""

    def work(batch: Tensor, _: int) -> Tensor:
        made = run.model("maker", batch.flip(0))
        real: Tensor = (1 - run.model("critic", batch)).square().mean()
        real.backward()
        judged: Tensor = run.model("critic", made.detach()).square().mean()
        judged.backward()
        update(run, "critic")
        fooled: Tensor = (1 - run.model("critic", made)).square().mean()
        fooled.backward()
        update(run, "maker")
        return torch.stack([real, judged, fooled]).detach()

    repeated(run, work)


def dcgan_real_first(run: Run) -> None:
    """As in PyTorch's own tutorial: the critic's first backward comes before the maker's forward."""

    def work(batch: Tensor, _: int) -> Tensor:
        real: Tensor = (1 - run.model("critic", batch)).square().mean()
        real.backward()
        made = run.model("maker", batch.flip(0))
        judged: Tensor = run.model("critic", made.detach()).square().mean()
        judged.backward()
        update(run, "critic")
        fooled: Tensor = (1 - run.model("critic", made)).square().mean()
        fooled.backward()
        update(run, "maker")
        return torch.stack([real, judged, fooled]).detach()

    repeated(run, work)


def looked_at_in_between(run: Run) -> None:
    """A forward without gradients while the maker's graph waits, and a backward begins before that."""

    def work(batch: Tensor, _: int) -> Tensor:
        made = run.model("maker", batch)
        judged: Tensor = run.model("critic", made.detach()).square().mean()
        judged.backward()
        update(run, "critic")
        with torch.no_grad():
            seen = run.model("critic", batch).mean()
        fooled: Tensor = (1 - run.model("critic", made)).square().mean()
        fooled.backward()
        update(run, "maker")
        return torch.stack([judged, fooled, seen]).detach()

    repeated(run, work)


def cyclegan(run: Run) -> None:
    """Two makers, whose graphs wait while two critics learn; the cycle closes after that."""

    def work(batch: Tensor, _: int) -> Tensor:
        other = batch.flip(0)
        there, back = run.model("there", batch), run.model("back", other)
        losses: list[Tensor] = []
        for critic, real, made in (("first", other, there), ("second", batch, back)):
            losses.append(
                (1 - run.model(critic, real)).square().mean() + run.model(critic, made.detach()).square().mean()
            )
            losses[-1].backward()
            update(run, critic)
        cycle = (run.model("back", there) - batch).abs().mean() + (run.model("there", back) - other).abs().mean()
        fooled = (1 - run.model("first", there)).square().mean() + (1 - run.model("second", back)).square().mean()
        losses.append(fooled + cycle)
        losses[-1].backward()
        update(run, "there", "back")
        return torch.stack(losses).detach()

    repeated(run, work)


def penalised(run: Run, every: int, count: int = 9) -> None:
    """WGAN-GP: the norm of the critic's gradient between what is real and what is made, in every so many steps."""

    def work(batch: Tensor, number: int) -> Tensor:
        made = run.model("maker", batch.flip(0))
        judged: Tensor = run.model("critic", made.detach()).mean() - run.model("critic", batch).mean()
        if number % every == every - 1:
            between = ((batch + made.detach()) / 2).requires_grad_()
            outputs = run.model("critic", between)
            (slope,) = torch.autograd.grad(outputs.sum(), between, create_graph=True)
            judged = judged + 10 * (slope.norm(dim=1) - 1).square().mean()
        judged.backward()
        update(run, "critic")
        fooled: Tensor = -run.model("critic", made).mean()
        fooled.backward()
        update(run, "maker")
        return torch.stack([judged, fooled]).detach()

    run.settled = max(run.settled, 3 * every)  # the meter's profiler is in the way of a recording
    repeated(run, work, count)


def penalised_apart(run: Run) -> None:
    """R1 as StyleGAN2 has it: a backward of its own, which nothing that the critic returned is part of."""

    def work(batch: Tensor, number: int) -> Tensor:
        real = batch.detach().requires_grad_()
        (slope,) = torch.autograd.grad(run.model("critic", real).sum(), real, create_graph=True)
        penalty = slope.square().sum(1).mean()
        penalty.backward()
        update(run, "critic")
        return penalty.detach()

    repeated(run, work)


def turns(run: Run) -> None:
    """Steps that begin alike and go on elsewhere: neither's own plan would do for the other."""

    def work(batch: Tensor, number: int) -> Tensor:
        made = run.model("maker", batch)
        seen: Tensor = run.model("critic", made.detach()).square().mean()
        seen.backward()
        update(run, "critic")
        other = "left" if number % 3 else "right"
        loss: Tensor = run.model(other, made).square().mean()
        loss.backward()
        update(run, "maker", other)
        return torch.stack([seen, loss]).detach()

    run.settled = max(run.settled, 9)
    repeated(run, work, 18)


LOOPS = {
    "no optimizer": without_an_optimizer,
    "DCGAN": dcgan,
    "DCGAN, real first": dcgan_real_first,
    "looked at in between": looked_at_in_between,
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("budget", [0.75])
def test_a_graph_that_outlives_a_backward(loop: Callable[[Run], None], budget: float) -> None:
    """Such a step ended at its first backward: what waited was in no plan, and 70 MB became 101 in silence."""
    found = held(pair, loop, optimizer=Several, budget=budget)
    assert found.said == ""


def test_two_graphs_that_outlive_two_backwards() -> None:
    found = held(partial(Parts, "there", "back", "first", "second"), cyclegan, optimizer=Several, budget=0.6)
    assert found.said == ""


@pytest.mark.parametrize(("every", "budget"), [(1, 0.9), (1, 0.8)])
def test_a_penalty_on_gradients_while_a_graph_waits(every: int, budget: float) -> None:
    found = held(pair, partial(penalised, every=every), optimizer=Several, budget=budget)
    assert found.said == ""


@pytest.mark.parametrize("budget", [0.95, 0.85])
def test_a_penalty_apart(budget: float) -> None:
    found = held(pair, penalised_apart, optimizer=Several, budget=budget)
    assert found.said == ""


@pytest.mark.parametrize("every", [2, 4])
def test_a_penalty_in_some_steps(every: int) -> None:
    found = held(pair, partial(penalised, every=every, count=21), optimizer=Several, budget=0.8)
    assert found.said == ""


@pytest.mark.parametrize("budget", [0.75, 0.6])
def test_steps_that_begin_alike_and_go_on_elsewhere(budget: float) -> None:
    """With a plan for one of them, what the others do was spilled each time, and the budget held at that cost."""
    found = held(with_sides, turns, optimizer=Several, budget=budget)
    assert found.said == ""
