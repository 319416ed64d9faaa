"""What loops do between steps, and before the first."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.loops.models import Network, deep, loss_of, network
from tests.loops.twin import Run, held, steps, train
from tests.rows import swept


def evaluate(run: Run) -> None:
    run.model.eval()
    with torch.no_grad():
        for rows in (64, 7):
            run.note(f"evaluated {rows} after {len(run.planned)}", run.model(steps(1, rows)[0]))
    run.model.train()


def evaluate_in_inference_mode(run: Run) -> None:
    run.model.eval()
    with torch.inference_mode():
        run.note(f"inferred after {len(run.planned)}", run.model(steps(1, 64)[0]).clone())
    run.model.train()


def evaluate_with_gradients(run: Run) -> None:
    """In eval mode, and nobody thought of `no_grad`."""
    run.model.eval()
    run.note(f"evaluated after {len(run.planned)}", run.model(steps(1, 64)[0]))
    run.model.train()


def sample_with_dropout(run: Run) -> None:
    with torch.no_grad():
        for _ in range(3):
            run.note(f"sampled after {len(run.planned)}", run.model(steps(1, 64)[0]))


def generate(run: Run) -> None:
    """One row more a turn, as texts grow."""
    with torch.no_grad():
        rows = steps(1, 1)[0]
        for _ in range(8):
            rows = torch.cat([rows, torch.tanh(run.model(rows)[-1:]).repeat(1, 4)])
    run.note(f"generated after {len(run.planned)}", rows)


@pytest.mark.parametrize(
    "look", [evaluate, evaluate_in_inference_mode, evaluate_with_gradients, sample_with_dropout, generate]
)
def test_evaluation_between_steps(look: Callable[[Run], None]) -> None:
    def loop(run: Run) -> None:
        for batch in steps():
            train(run, [batch])
            look(run)

    held(network, loop)


@swept("look", (evaluate,), (sample_with_dropout,), (generate,), (evaluate_with_gradients,), kept=2)
def test_evaluation_before_the_first_step(look: Callable[[Run], None]) -> None:
    def loop(run: Run) -> None:
        look(run)
        train(run, steps())

    held(network, loop)


def test_a_forward_that_leads_to_no_backward_comes_first() -> None:
    def loop(run: Run) -> None:
        for rows in (3, 512):
            run.note(f"looked at {rows}", run.model(steps(1, rows)[0]))
        train(run, steps())

    held(network, loop, planned_by=5)


SIZES = {
    "many": (512, 300, 40, 511, 128, 7, 512, 450, 200, 512),
    "growing": (64, 100, 128, 200, 256, 300, 400, 450, 500, 512, 512, 512),
    "a last batch of one": (512, 512, 1, 512, 512, 1),
    "a first batch of one": (1, 512, 512, 512, 512),
}


@pytest.mark.parametrize("sizes", SIZES)
def test_batches_of_several_sizes(sizes: str) -> None:
    """Measured are those that have come before."""

    def loop(run: Run) -> None:
        for again in range(2):
            run.unsettle(0 if again else len(SIZES[sizes]))
            for rows in SIZES[sizes]:
                train(run, steps(1, rows))

    held(network, loop, planned_by=6)


def saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved_and_loaded,
}
KEPT = [("deepcopy", 1), ("pickle", 2), ("torch.save", 5)]


@swept("copied, after", *KEPT, *sorted({*itertools.product(COPIED, (0, 1, 2, 5))} - {*KEPT}), kept=3)
def test_going_on_with_a_copy(copied: str, after: int) -> None:
    def loop(run: Run) -> None:
        train(run, steps()[:after])
        state, first = run.optimizer.state_dict(), run.model
        run.model = COPIED[copied](run.model)
        if run.governed and copied != "deepcopy":  # a pickle is one of the plain model
            assert "forward" not in vars(run.model)
            autockpt.apply(run.model, run.budget_bytes)
        run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3)
        run.optimizer.load_state_dict(state)
        del first
        run.unsettle()
        train(run, steps(10)[after:])

    held(network, loop, planned_by=after + 4)


@swept("after", (1,), (0,), (2,), (5,), kept=1)
def test_an_average_of_the_weights(after: int) -> None:
    def loop(run: Run) -> None:
        train(run, steps()[:after])
        average = copy.deepcopy(run.model).requires_grad_(False)
        for batch in steps()[after:]:
            train(run, [batch])
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), run.model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
            average.eval()
            run.note(f"average after {len(run.planned)}", average(steps(1, 64)[0]))

    held(network, loop)


def test_a_copy_that_trains_beside_it() -> None:
    """As for a learning rate finder, or a teacher that is trained on."""

    def loop(run: Run) -> None:
        train(run, steps(2))
        twin = copy.deepcopy(run.model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for number in range(4):
            loss = loss_of(twin(steps()[number]))
            loss.backward()
            run.note(f"loss of the copy {number}", loss)
            optimizer.step()
            optimizer.zero_grad()
        train(run, steps()[2:])

    held(network, loop)


def test_weights_loaded_in_the_middle() -> None:
    def loop(run: Run) -> None:
        train(run, steps(1))
        model = {name: value.clone() for name, value in run.model.state_dict().items()}
        optimizer = copy.deepcopy(run.optimizer.state_dict())
        train(run, steps(5)[1:])
        run.model.load_state_dict(model)
        run.optimizer.load_state_dict(optimizer)
        train(run, steps()[4:])

    held(deep, loop)


def test_removed_and_applied_again() -> None:
    def loop(run: Run) -> None:
        for number, batch in enumerate(steps(11)):
            if number in (1, 2, 5) and run.governed:
                autockpt.remove(run.model)
                autockpt.apply(run.model, run.budget_bytes)
                run.unsettle()
            train(run, [batch])

    held(network, loop, planned_by=9)


@pytest.mark.parametrize("kind", ["norm", "hook"])
def test_outputs_of_the_last_step_that_live_on(kind: str) -> None:
    """A loop that holds a name, or a hook that keeps what it saw."""

    def loop(run: Run) -> None:
        seen: dict[str, Tensor] = {}
        if kind == "hook":
            run.model.enter.register_forward_hook(lambda _, __, out: seen.update(out=out))  # type: ignore[union-attr]
        for batch in steps():

            def work(batch: Tensor = batch) -> Tensor:
                seen["outputs"] = run.model(batch)
                loss = loss_of(seen["outputs"])
                loss.backward()
                run.update()
                return loss

            run.step(work, batch)

    held(network, loop)


class Around(nn.Module):
    """A model around another one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Network()
        self.head = nn.Sequential(nn.Linear(8, 256), nn.GELU(), nn.Linear(256, 8))

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(batch))
        return out


def test_a_part_that_is_to_be_held_to_a_budget_of_its_own_is_refused_and_the_whole_trains_on() -> None:
    def loop(run: Run) -> None:
        inner: Any = run.model.inner
        if run.budget_bytes is not None:
            with pytest.raises(autockpt.NotApplicable, match="is 'inner' in a Around that is held to a budget"):
                autockpt.apply(inner, run.budget_bytes)
        train(run, steps())

    assert held(Around, loop).said == ""


def test_a_whole_of_which_a_part_is_held_to_a_budget_already() -> None:
    model = Around()
    autockpt.apply(model.inner, "1GB")
    with pytest.raises(
        autockpt.NotApplicable,
        match=r"a part already, 'inner'\. Take it off first: autockpt\.remove\(model\.get_submodule\('inner'\)\)",
    ):
        autockpt.apply(model, "1GB")
    autockpt.remove(model.inner)
    autockpt.apply(model, "1GB")


@pytest.mark.parametrize("ours", [None, 2, 3], ids=["never ours", "ours every second time", "ours every third time"])
def test_a_forward_in_the_place_of_ours(ours: int | None) -> None:
    """The first step is not seen, since the other forward does not call ours; later ones are planned."""

    def loop(run: Run) -> None:
        model: Any = run.model
        own, called = model.forward, itertools.count(1)

        def other(batch: Tensor) -> Tensor:
            if ours is not None and next(called) % ours == 0:
                found: Tensor = own(batch)
                return found
            hidden = model.enter(batch)
            for block in model.blocks:
                hidden = block(hidden)
            return 2 * model.leave(hidden)  # type: ignore[no-any-return]

        model.forward = other
        run.unsettle(8)
        train(run, steps(16))
        if run.governed:
            autockpt.remove(model)
        assert model.forward is other
        train(run, steps(4))

    found = held(network, loop, planned_by=8, excuse="was replaced")
    assert not any(found.run.planned[16:])
    assert found.run.planned[7]


@pytest.mark.parametrize("how", ["taken out", "put elsewhere"])
def test_a_block_that_is_taken_out_or_put_elsewhere(how: str) -> None:
    """Those behind it have other names then; the first step after it is recorded."""

    def loop(run: Run) -> None:
        blocks: Any = run.model.blocks
        train(run, steps(5))
        block = blocks.pop(0)
        if how == "put elsewhere":
            blocks.append(block)
        run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3)
        run.unsettle(1)
        train(run, steps(5))

    found = held(network, loop)
    assert not any("forward" in vars(module) for module in found.run.model.modules())


def through_a_pickle(model: nn.Module) -> nn.Module:
    found: nn.Module = pickle.loads(pickle.dumps(model))
    return found


@pytest.mark.parametrize("through", [copy.deepcopy, through_a_pickle])
@pytest.mark.parametrize("planned", [True, False])
def test_a_model_and_its_copies_go_as_soon_as_nobody_has_them(
    through: Callable[[nn.Module], nn.Module], planned: bool
) -> None:
    """Their memory stayed on the device until Python's collector ran: a patch and its module were a circle."""
    model, (batch,) = autockpt.apply(network(), "1GB"), steps(1, 64)
    for _ in range(4 if planned else 0):
        loss_of(model(batch)).backward()
    assert (autockpt.plan_of(model) is not None) == planned
    gc.collect()
    gc.disable()
    try:
        left = [weakref.ref(parameter) for parameter in through(model).parameters()]
        assert [reference for reference in left if reference() is not None] == []
        left = [weakref.ref(parameter) for parameter in model.parameters()]
        del model
        assert [reference for reference in left if reference() is not None] == []
    finally:
        gc.enable()


def test_a_forward_whose_model_is_gone_says_so() -> None:
    model = autockpt.apply(network(), plan=autockpt.Plan.of(["blocks.0"]))
    forward = model.forward
    del model
    with pytest.raises(ReferenceError, match="hold on to the model"):
        forward(steps(1, 64)[0])
