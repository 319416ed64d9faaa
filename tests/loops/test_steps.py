"""Steps that are more than a forward, a backward and an update."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autockpt
from tests.loops.models import WIDTH, Layerdrop, Network, Partly, loss_of, network
from tests.loops.twin import Run, held, listening, steps, train, train_on


def test_nothing_special() -> None:
    found = held(network, lambda run: train(run, steps()))
    assert found.said == ""


def test_a_model_that_counts_nothing_is_planned_in_its_third_step() -> None:
    held(partial(Network, counting=False), lambda run: train(run, steps()), planned_by=3)


def test_an_optimizer_made_after_the_first_forward() -> None:
    def loop(run: Run) -> None:
        def first() -> Tensor:
            loss = loss_of(run.model(steps()[0]))
            run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3)
            loss.backward()
            run.update()
            return loss

        run.step(first)
        train(run, steps()[1:])

    held(network, loop, optimizer=lambda _: torch.optim.SGD([nn.Parameter(torch.zeros(1))]))


def test_accumulation() -> None:
    def loop(run: Run) -> None:
        for batch in steps():

            def work(batch: Tensor = batch) -> Tensor:
                losses = []
                for half in batch.chunk(2):
                    loss = loss_of(run.model(half)) / 2
                    loss.backward()
                    losses.append(loss.detach())
                run.update()
                return torch.stack(losses)

            run.step(work, batch)

    held(network, loop)


def test_two_forwards_before_one_backward() -> None:
    def loop(run: Run) -> None:
        def apart(batch: Tensor) -> Tensor:
            left, right = run.model(batch[:256]), run.model(batch[256:])
            loss: Tensor = (left - right).square().mean() + loss_of(left)
            return loss

        train_on(run, steps(), apart)

    held(network, loop)


def test_a_model_called_on_its_own_result() -> None:
    def loop(run: Run) -> None:
        def twice(batch: Tensor) -> Tensor:
            return loss_of(run.model(torch.cat([run.model(batch), batch[:, 8:]], dim=1)))

        train_on(run, steps(rows=256), twice)

    held(network, loop)


def test_weights_that_each_step_makes() -> None:
    """Weight noise, hypernetworks: the step to be planned raised that the optimizer trains none of the parameters."""

    def loop(run: Run) -> None:
        def noisy(batch: Tensor) -> Tensor:
            own = run.model.named_parameters()
            weights = {name: each * (1 + 0.01 * torch.randn_like(each)) for name, each in own}
            return loss_of(torch.func.functional_call(run.model, weights, (batch,)))

        train_on(run, steps(), noisy)

    held(network, loop)


def test_a_scaled_loss() -> None:
    def loop(run: Run) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        for number, batch in enumerate(steps()):

            def work(batch: Tensor = batch, overflows: bool = number == 3) -> Tensor:
                loss = loss_of(run.model(batch))
                scaler.scale(loss * torch.inf if overflows else loss).backward()
                scaler.unscale_(run.optimizer)
                nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
                run.note_gradients()
                scaler.step(run.optimizer)
                scaler.update()
                run.optimizer.zero_grad()
                return loss

            run.step(work, batch)

    held(network, loop)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("scaled", [False, True])
def test_autocast(scaled: bool) -> None:
    def loop(run: Run) -> None:
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        for batch in steps():

            def work(batch: Tensor = batch) -> Tensor:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(run.model(batch))
                scaler.scale(loss).backward()
                run.note_gradients()
                scaler.step(run.optimizer)
                scaler.update()
                run.optimizer.zero_grad()
                return loss

            run.step(work, batch)

    held(network, loop)


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=2)


def test_a_closure_of_lbfgs() -> None:
    def loop(run: Run) -> None:
        for batch in steps(rows=2048):

            def work(batch: Tensor = batch) -> Tensor:
                losses = []

                def closure() -> Tensor:
                    run.optimizer.zero_grad()
                    loss = loss_of(run.model(batch))
                    loss.backward()
                    run.note_gradients()
                    losses.append(loss.detach())
                    return loss

                run.optimizer.step(closure)  # type: ignore[arg-type]
                return torch.stack(losses)

            run.step(work, batch)

    held(network, loop, optimizer=lbfgs)


@pytest.mark.parametrize("reentrant", [False, True])
def test_parts_that_torchs_own_checkpoint_recomputes(reentrant: bool) -> None:
    held(partial(Partly, reentrant=reentrant), lambda run: train(run, steps()), budget=0.8)


def test_backward_twice() -> None:
    def loop(run: Run) -> None:
        for batch in steps():

            def work(batch: Tensor = batch) -> Tensor:
                loss = loss_of(run.model(batch))
                loss.backward(retain_graph=True)
                run.note_gradients()
                loss.backward()
                run.update()
                return loss

            run.step(work, batch)

    held(network, loop, budget=0.8)


def test_two_losses_on_one_graph() -> None:
    def loop(run: Run) -> None:
        for batch in steps():

            def work(batch: Tensor = batch) -> Tensor:
                outputs = run.model(batch)
                gradients = torch.autograd.grad(outputs.square().mean(), run.model.leave.weight, retain_graph=True)  # type: ignore[union-attr,arg-type]
                loss = loss_of(outputs) + gradients[0].square().sum().detach()
                loss.backward()
                run.update()
                return loss

            run.step(work, batch)

    held(network, loop, budget=0.8)


def test_a_penalty_on_the_gradient_of_the_batch() -> None:
    def loop(run: Run) -> None:
        for batch in steps(rows=256):

            def work(batch: Tensor = batch) -> Tensor:
                batch = batch.detach().requires_grad_()  # a copy of the loop would stand besides
                loss = loss_of(run.model(batch))
                (slope,) = torch.autograd.grad(loss, batch, create_graph=True)
                loss = loss + slope.square().sum()
                loss.backward()
                run.update()
                return loss

            run.step(work, batch)

    found = held(network, loop, budget=0.9)
    assert found.said == ""


def test_zeros_instead_of_no_gradients() -> None:
    def loop(run: Run) -> None:
        for batch in steps():

            def work(batch: Tensor = batch) -> Tensor:
                loss = loss_of(run.model(batch))
                loss.backward()
                run.note_gradients()
                run.optimizer.step()
                run.optimizer.zero_grad(set_to_none=False)
                return loss

            run.step(work, batch)

    held(network, loop)


def test_layers_that_are_unfrozen_later() -> None:
    def loop(run: Run) -> None:
        for block in run.model.blocks[:3]:  # type: ignore[index]
            block.requires_grad_(False)
        for number, batch in enumerate(steps(12)):
            if number == 4:
                run.model.requires_grad_(True)
                run.unsettle()
            train(run, [batch])

    held(network, loop)


def test_two_models_that_train_each_other() -> None:
    def loop(run: Run) -> None:
        torch.manual_seed(4)
        maker = Network(blocks=1, dropout=0.0)
        enlarge = nn.Linear(8, 32)
        others = torch.optim.SGD([*maker.parameters(), *enlarge.parameters()], lr=0.01)
        for batch in steps():

            def work(batch: Tensor = batch) -> Tensor:
                made = enlarge(maker(batch))
                judged: Tensor = loss_of(run.model(batch)) - run.model(made.detach()).square().mean()
                judged.backward()
                run.update()
                fooled: Tensor = run.model(made).square().mean()
                fooled.backward()
                others.step()
                others.zero_grad()
                run.note_gradients()
                run.optimizer.zero_grad()
                return judged + fooled

            run.step(work, batch)

    held(network, loop)


def test_a_step_of_two_models_is_not_said_to_have_a_profiler_that_the_user_could_stop() -> None:
    """The first model's recording is the profiler that runs as the second one's forward begins."""
    first, second = network(), network()
    for model in (first, second):
        autockpt.apply(model, "1GiB")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    with listening() as said:
        for batch in steps(8, 64):
            (loss_of(first(batch)) + loss_of(second(batch))).backward()
            optimizer.step()
            optimizer.zero_grad()
    recording = [each for each in said if "profiler" in each]
    assert len(recording) == 1 and "a step of another model" in recording[0], said
    assert "Stop it first" not in recording[0]
    for model in (first, second):
        assert autockpt.plan_of(model) is not None
        autockpt.remove(model)


@pytest.mark.parametrize("torchs", [False, True], ids=["by Python's generator", "by torch's generator"])
def test_a_depth_that_is_drawn(torchs: bool) -> None:
    """Blocks that no recorded step had are not in the plan: what they save waits elsewhere."""

    def loop(run: Run) -> None:
        random.seed(2)
        torch.manual_seed(2)
        train(run, steps(24))

    held(partial(Layerdrop, torchs=torchs), loop)


class Repeated(Network):
    """Calls its first block once, or several times."""

    def body(self, hidden: Tensor) -> Tensor:
        for block in (self.blocks[0],) * random.randrange(6) + tuple(self.blocks):
            hidden = block(hidden)
        return hidden


def test_a_block_that_is_called_as_often_as_is_drawn() -> None:
    held(Repeated, lambda run: train(run, steps(24)), planned_by=6)


class Worded(Network):
    """Adds one of its tables, of which the first steps reach one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ParameterList(torch.zeros(512, WIDTH) for _ in range(8))

    def body(self, hidden: Tensor) -> Tensor:
        reached = max(self.forwards - 5, 0) % len(self.tables)
        return super().body(hidden + self.tables[reached])


def test_parameters_that_are_trained_later() -> None:
    """An optimizer makes state for them when it first trains them."""
    held(Worded, lambda run: train(run, steps(20)))


class Fed(Network):
    """Holds an iterator that refuses to be pickled, as a module of Lightning's does by its trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = iter(DataLoader(TensorDataset(torch.zeros(4, 1))))


def test_a_model_that_holds_an_iterator_of_batches() -> None:
    held(Fed, lambda run: train(run, steps()))


class Scripted(Network):
    """Has a scripted part, and one that only some steps call."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = (torch.jit.script(nn.Tanh()) for _ in range(2))

    def body(self, hidden: Tensor) -> Tensor:
        hidden = self.always(super().body(hidden))
        return self.sometimes(hidden) if random.random() < 0.5 else hidden


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_scripted_parts_that_only_some_steps_call() -> None:
    held(Scripted, lambda run: train(run, steps(12)), planned_by=6)
