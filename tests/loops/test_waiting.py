"""Steps in which a graph outlives a backward: a generator's, while its critics learn."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from tests.doors import MOST_FORWARDS, follow_course, governor_of
from tests.loops.twin import Run, held, listening, steps
from tests.rows import swept
from tests.twin import storage_bytes

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


def dcgan(run: Run, *, real_first: bool = False) -> None:
    """Two optimizers in turn; the critic sees what is real, then what is made, then that again for the maker."""

    def work(batch: Tensor, _: int) -> Tensor:
        made = None if real_first else run.model("maker", batch.flip(0))
        real: Tensor = (1 - run.model("critic", batch)).square().mean()
        real.backward()
        made = run.model("maker", batch.flip(0)) if made is None else made
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
    dcgan(run, real_first=True)


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
    if every > 2:
        # Who has planned for steps without one keeps in the first with it what a plan for both would not; of that
        # what its second derivatives hold can wait nowhere.
        run.unmeasured = frozenset({every})
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


def several_critics(run: Run) -> None:
    """WGAN: the critic learns three times for each time that the maker does, whose graphs are let go of one later."""

    def work(batch: Tensor, _: int) -> Tensor:
        losses: list[Tensor] = []
        for part in batch.chunk(3):
            made = run.model("maker", part.flip(0))
            losses.append(run.model("critic", made.detach()).mean() - run.model("critic", part).mean())
            losses[-1].backward()
            update(run, "critic")
        made = run.model("maker", batch)
        losses.append(-run.model("critic", made).mean())
        losses[-1].backward()
        update(run, "maker")
        return torch.stack(losses).detach()

    run.settled = max(run.settled, 8)  # the first recordings are refused, since a graph had no backward
    repeated(run, work, 12)


def inner_loop(run: Run) -> None:
    """Second-order MAML: each loss waits for the last backward, while inner losses have theirs."""

    def work(batch: Tensor, _: int) -> Tensor:
        weights: dict[str, Tensor] = {**dict(run.model.named_parameters())}
        total = torch.zeros(())
        for part in batch.chunk(2):
            loss = torch.func.functional_call(run.model, weights, ("maker", part)).square().mean()
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            fast = {name: weights[name] - 0.1 * each for name, each in zip(weights, gradients, strict=True)}
            total = total + torch.func.functional_call(run.model, fast, ("maker", part)).square().mean()
        total.backward()
        update(run, "maker")
        return total.detach()

    repeated(run, work)


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


def test_several_critics_for_one_maker() -> None:
    """No backward comes to the graphs of all makers but the last, so the first recordings are refused, as they were.

    As a step is recorded the loop still holds such a graph from before, which is said where no other thread runs.
    """
    found = held(pair, several_critics, optimizer=Several, budget=0.75, planned_by=12)
    dropped, *others = found.said.splitlines()
    assert "had no backward" in dropped and all("stand beside the model" in each for each in others)


def test_two_graphs_that_outlive_two_backwards() -> None:
    found = held(partial(Parts, "there", "back", "first", "second"), cyclegan, optimizer=Several, budget=0.6)
    assert found.said == ""


@swept("every, budget", (1, 0.8), (1, 0.9), kept=1)
def test_a_penalty_on_gradients_while_a_graph_waits(every: int, budget: float) -> None:
    found = held(pair, partial(penalised, every=every), optimizer=Several, budget=budget)
    assert found.said == ""


@swept("budget", (0.85,), (0.95,), kept=1)
def test_a_penalty_apart(budget: float) -> None:
    found = held(pair, penalised_apart, optimizer=Several, budget=budget)
    assert found.said == ""


def test_an_inner_loop() -> None:
    """What runs with weights of its own cannot be repeated: its peak is the plain one, and planned to the byte."""
    found = held(partial(Parts, "maker"), inner_loop, optimizer=Several, budget=1.0)
    assert found.said == ""


@swept("every", (2,), (4,), kept=1)  # test_several has every fourth step each day
def test_a_penalty_in_some_steps(every: int) -> None:
    found = held(pair, partial(penalised, every=every, count=21), optimizer=Several, budget=0.8, planned_by=5)
    assert found.said == ""


@swept("budget", (0.6,), (0.75,), kept=1)
def test_steps_that_begin_alike_and_go_on_elsewhere(budget: float) -> None:
    """With a plan for one of them, what the others do was spilled each time, and the budget held at that cost."""
    found = held(with_sides, turns, optimizer=Several, budget=budget)
    assert found.said == ""


def lengths(model: nn.Module) -> int:
    """Of the step that is under way, in forwards."""
    governor: Any = governor_of(model)
    return len(governor._step.batches)


@pytest.mark.parametrize("stepping", [True, False])
def test_an_output_that_is_only_held_ends_with_its_step(stepping: bool) -> None:
    """A metric holds the graph of a forward that no backward comes to: a step must not wait for that."""
    model = autockpt.apply(tower(), "1GB")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    (batch,), seen = steps(1, 64), []
    metric = model(batch)
    for _ in range(3 * MOST_FORWARDS):
        model(batch).square().mean().backward()
        if stepping:
            optimizer.step()
        model.zero_grad()
        seen.append(lengths(model))
    assert max(seen) == (2 if stepping else 2 + MOST_FORWARDS)
    assert seen[-1] == 1 and autockpt.plan_of(model) is not None
    del metric


def test_what_create_graph_has_made_waits_for_no_backward_once_an_optimizer_has_stepped() -> None:
    """The loop only holds it then, and its next forward begins a step."""
    torch.manual_seed(0)
    model = autockpt.apply(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), "1GB")
    # One that steps every parameter would end the step by itself.
    optimizer, held = torch.optim.SGD(model[2].parameters(), lr=0.1), list[Any]()
    for _ in range(4):
        held.append(model(torch.randn(4, 8)).sum())
        gradients = torch.autograd.grad(held[-1], [*model.parameters()], create_graph=True)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient.detach()
        optimizer.step()
    governor: Any = governor_of(model)
    assert governor._state.number == 4


def test_a_graph_that_is_held_into_the_next_step_counts_until_it_goes() -> None:
    """No backward comes to it. What it saved stood on top of the next step, in silence: 12.8 % over the budget."""

    def peaks(budget: int | None) -> list[int]:
        torch.manual_seed(0)
        model, kept = tower(), list[Tensor]()
        if budget is not None:
            autockpt.apply(model, budget)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        (batch,) = steps(1, ROWS)

        def step() -> None:
            kept.append(model(batch))
            del kept[:-1]
            model(torch.cat([batch, batch])).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(6):
            step()
        return [autockpt.measure(step, device="cpu").peak_bytes for _ in range(2)]

    plain = peaks(None)
    with pytest.raises(autockpt.Infeasible) as caught:
        peaks(plain[0] // 2)
    lowest = caught.value.minimum_bytes
    del caught  # its frames hold what was trained
    gc.collect()
    assert lowest < plain[0]
    assert max(peaks(lowest)) <= lowest


def test_a_loop_that_runs_each_forward_before_the_last_backward_is_told_of_once() -> None:
    """Such a step ends nowhere, and for 70 forwards there was neither a plan nor a word."""
    model = autockpt.apply(tower(), "1GB")
    (batch,) = steps(1, 64)
    with listening() as said:
        loss = model(batch).square().mean()
        for _ in range(2 * MOST_FORWARDS + 6):
            before, loss = loss, model(batch).square().mean()
            before.backward()
            model.zero_grad()
    assert [each for each in said if "comes before the backward" in each] == said[:1]


def test_an_optimizer_that_steps_once_a_forward_of_a_long_step_is_not_told_of_as_one_without_a_forward() -> None:
    model = autockpt.apply(pair(), "1GB")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    (batch,) = steps(1, 64)
    with listening() as said:
        for _ in range(4):
            made = model("maker", batch)
            for _ in range(2):
                model("critic", made.detach()).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            model("critic", made.detach()).square().mean().backward()
            optimizer.zero_grad()
    assert [each for each in said if "no training forward" in each] == []


class Checkpointed(nn.Sequential):
    """Blocks that torch's own checkpoint recomputes, or that are left to us."""

    torchs = True

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.torchs else block(hidden)
        return hidden


def slopes(model: nn.Module, batch: Tensor, *, alone: bool) -> None:
    given = batch.detach().requires_grad_()
    loss = model(given).square().mean()
    (slope,) = torch.autograd.grad(loss, given, create_graph=True)
    (slope.square().sum() + (0 if alone else loss)).backward()
    model.zero_grad()


@pytest.mark.parametrize("alone", [True, False])
def test_the_lowest_peak_of_a_second_derivative_is_that_of_torchs_checkpoint(alone: bool) -> None:
    """What a pass with `create_graph` has read it holds: none of it was counted, and the lowest peak came out lower."""
    (batch,) = steps(1, ROWS)
    torchs, ours = Checkpointed(*tower(8)), Checkpointed(*tower(8))
    ours.torchs = False
    static_bytes = storage_bytes([*ours.parameters(), batch])
    work = partial(slopes, torchs, batch, alone=alone)
    work()
    theirs = static_bytes + autockpt.measure(work, device="cpu").step_bytes
    autockpt.apply(ours, "1MB")
    with pytest.raises(autockpt.Infeasible) as caught:
        for _ in range(3):
            slopes(ours, batch, alone=alone)
    lowest = caught.value.minimum_bytes
    assert lowest <= 1.02 * theirs
    autockpt.apply(ours, lowest)
    work = partial(slopes, ours, batch, alone=alone)
    for _ in range(4):
        work()
    assert static_bytes + autockpt.measure(work, device="cpu").step_bytes <= lowest


def test_a_profile_of_late_forwards_says_of_each_tick_what_runs(tmp_path: Path) -> None:
    model = autockpt.apply(pair(), "1GB")
    (batch,) = steps(1, 64)
    for _ in range(3):
        made = model("maker", batch)
        model("critic", made.detach()).square().mean().backward()
        model("critic", made).square().mean().backward()
        model.zero_grad()
    governor: Any = governor_of(model)
    profile: autockpt.Profile = governor._state.history.known[0].source.profile
    profile.save(tmp_path / "profile.json")
    assert autockpt.Profile.load(tmp_path / "profile.json") == profile
    (start, stop), (again,) = profile.late_forwards[0], profile.backward_ticks
    assert len(profile.late_forwards) == 1 and profile.forward_ticks < start < stop == again < profile.ticks
    late = [call for call in profile.calls if start <= call.enter]
    assert [call.key for call in late if call.name in ("", "critic")] == ["#2", "critic#1"]
    assert all(call.exit <= stop and call.forward_seconds > 0 for call in late)
    plan = autockpt.solve(profile, "lowest")
    timeline = plan.timeline(profile)
    assert timeline.peak_bytes == plan.peak_bytes
    phases = [phase for phase, _ in itertools.groupby(each.phase for each in timeline.steps)]
    assert phases[:4] == ["forward", "backward", "forward", "backward"]
    assert "critic#1" in plan.explain(profile)
    moments = [*follow_course(profile, plan).edges]
    assert moments == sorted(moments)
