"""Several models that train together: one budget, one plan, one peak, whatever the loop does between them."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import NotApplicable, Plan
from tests.loops.models import WIDTH, Network, loss_of, network
from tests.loops.test_waiting import LOOPS, Several, cyclegan, penalised, tower
from tests.loops.twin import Run, held, listening, steps
from tests.rows import swept
from tests.toys.chains import feed_forward
from tests.toys.told import Told

Work = Callable[[Mapping[str, nn.Module], Tensor], Tensor]


class Unet(Network):
    """Takes a condition, which it adds to what goes through."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__(blocks)
        self.condition = nn.Linear(8, WIDTH)

    def forward(self, batch: Tensor, condition: Tensor | None = None) -> Tensor:
        assert condition is not None
        out: Tensor = self.leave(self.body(self.enter(batch) + self.condition(condition)))
        return out


def frozen(blocks: int = 4) -> nn.Module:
    return Network(blocks, counting=False).requires_grad_(False)


def fine_tuning(models: Mapping[str, nn.Module], batch: Tensor) -> Tensor:
    """Text encoder and UNet train together."""
    made: Tensor = models["unet"](batch, models["encoder"](batch))
    return made.square().mean()


def diffusion(models: Mapping[str, nn.Module], batch: Tensor) -> Tensor:
    """Text encoder and VAE are frozen, and run without gradients."""
    with torch.no_grad():
        condition, latent = models["encoder"](batch), models["vae"](batch)
    noise = torch.randn_like(batch)
    made: Tensor = models["unet"](batch + noise, condition)
    loss: Tensor = (made - latent).square().mean()
    return loss


def preference(models: Mapping[str, nn.Module], batch: Tensor) -> Tensor:
    """DPO: two forwards of the policy, two of a frozen reference."""
    policy, reference = models["policy"], models["reference"]
    chosen, rejected = batch.chunk(2)
    with torch.no_grad():
        before = reference(chosen).mean() - reference(rejected).mean()
    return -nn.functional.logsigmoid(policy(chosen).mean() - policy(rejected).mean() - before)


def distillation(models: Mapping[str, nn.Module], batch: Tensor) -> Tensor:
    """The student has a head of its own; the teacher is frozen."""
    with torch.no_grad():
        wanted = models["teacher"](batch).softmax(-1)
    return nn.functional.cross_entropy(models["head"](models["student"](batch)), wanted)


def siamese(models: Mapping[str, nn.Module], batch: Tensor) -> Tensor:
    """One encoder, called three times, and a projection of its own."""
    anchor, other, wrong = (models["project"](models["encoder"](each)) for each in (batch, batch + 0.1, batch + 3.0))
    return nn.functional.triplet_margin_loss(anchor, other, wrong)


def perceptual(models: Mapping[str, nn.Module], batch: Tensor) -> Tensor:
    """What a decoder makes is judged by a frozen network that gradients pass through."""
    made = models["decoder"](batch).repeat(1, 4)
    loss: Tensor = (models["judge"](made) - models["judge"](batch).detach()).square().mean()
    return loss


def alternating(models: Mapping[str, nn.Module], batch: Tensor) -> Tensor:
    """Which of two experts trains depends on the batch, so kinds of steps take turns."""
    return loss_of(models["first" if batch[0, 0] > 0 else "second"](batch))


ROWS: dict[str, tuple[Work, Callable[[], dict[str, nn.Module]]]] = {
    "a text encoder and a UNet": (fine_tuning, lambda: {"encoder": network(), "unet": Unet()}),
    "diffusion": (diffusion, lambda: {"encoder": frozen(), "vae": frozen(), "unet": Unet(8)}),
    "DPO": (preference, lambda: {"policy": network(), "reference": frozen(8)}),
    "distillation": (distillation, lambda: {"teacher": frozen(), "student": network(), "head": nn.Linear(8, 8)}),
    "siamese": (siamese, lambda: {"encoder": Network(3), "project": nn.Linear(8, 16)}),
    "a frozen judge": (perceptual, lambda: {"decoder": network(), "judge": frozen()}),
}


def loop(work: Work, run: Run) -> None:
    models: Any = run.model

    def step(batch: Tensor) -> Tensor:
        loss = work(models, batch)
        loss.backward()
        run.update()
        return loss

    for batch in steps():
        run.step(partial(step, batch), batch)


@pytest.mark.parametrize("row", ROWS)
def test_one_budget_over_several_models(row: str) -> None:
    work, build = ROWS[row]
    found = held(lambda: nn.ModuleDict(build()), partial(loop, work))
    assert found.said == ""


class Apart(nn.ModuleDict):
    """Several networks that are no parts of one, of which a call runs one."""

    def __call__(self, which: str, hidden: Tensor) -> Tensor:
        made: Tensor = self[which](hidden)
        return made


def towers(*names: str) -> nn.Module:
    return Apart({name: tower() for name in names})


@swept("turn", *((each,) for each in LOOPS.values()), kept=2)
def test_a_graph_of_one_model_outlives_a_backward_of_another(turn: Callable[[Run], None]) -> None:
    found = held(partial(towers, "maker", "critic"), turn, optimizer=Several, budget=0.75)
    assert found.said == ""


def test_two_makers_and_two_critics() -> None:
    found = held(partial(towers, "there", "back", "first", "second"), cyclegan, optimizer=Several, budget=0.6)
    assert found.said == ""


def test_a_penalty_every_fourth_step() -> None:
    turns = partial(penalised, every=4, count=21)
    found = held(partial(towers, "maker", "critic"), turns, optimizer=Several, budget=0.8, planned_by=5)
    assert found.said == ""


def test_what_a_model_holds_that_runs_before_counts() -> None:
    """Of two models that train together one was planned: the other's activations were in no plan, nor told of."""

    def loop(run: Run) -> None:
        torch.manual_seed(4)
        before = nn.Sequential(*(feed_forward(32) for _ in range(4)))

        def step(batch: Tensor) -> Tensor:
            loss = loss_of(run.model(before(batch)))
            loss.backward()
            run.update()
            before.zero_grad()
            return loss

        for batch in steps():
            run.step(partial(step, batch), batch)

    held(network, loop, budget=0.75)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other Python thread runs: while one does nobody looks at what is alive. A test before may have left one."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])


@pytest.mark.usefixtures("alone")
def test_what_runs_before_the_model_is_named_where_no_plan_holds_the_step() -> None:
    before, model = tower(8), tower(2)
    autockpt.apply(model, "2MiB")
    with pytest.raises(autockpt.Infeasible, match="runs before the model: if it is another model, plan both"):
        for batch in steps(4):
            loss_of(model(before(batch))).backward()
            before.zero_grad()
            model.zero_grad()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("budget_bytes", [24 * 2**20, 64 * 2**20])
@pytest.mark.parametrize(("share", "is_said"), [(0.01, False), (0.12, True), (0.37, True)])
def test_what_stands_beside_a_model_is_said_where_it_is_much(share: float, is_said: bool, budget_bytes: int) -> None:
    """Of a small budget nothing was said below 16 MiB: a loop that held 37 % of it for itself stood 32 % above it."""
    model, beside = network(), torch.zeros(int(share * budget_bytes) // 4)
    with listening() as said:
        autockpt.apply(model, budget_bytes)
        train([model])
    assert any("stand beside the model" in each for each in said) == is_said, said
    assert beside.numel()


def test_what_stands_beside_a_model_is_said_beside_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """tqdm's monitor is a thread, and while any other thread ran nobody looked at what is alive."""
    tqdm = pytest.importorskip("tqdm")
    model, beside = network(), torch.zeros(3 * 2**20)
    with tqdm.tqdm(total=1, file=io.StringIO()) as bar, listening() as said:
        threads = [threading.current_thread(), bar.monitor]  # a test before may have left others
        monkeypatch.setattr(threading, "enumerate", lambda: threads)
        autockpt.apply(model, "24MiB")
        train([model])
    assert bar.monitor.is_alive() and any("stand beside the model" in each for each in said)
    assert beside.numel()


@pytest.mark.usefixtures("alone")
def test_what_a_stash_holds_between_steps_is_none_of_the_loops() -> None:
    """Of a BigBird two steps were recorded, and the buffer of the first one's stash was told as another model's."""

    def has_gaps(own: Told, batch: Tensor) -> Tensor:
        own.forwards += 1
        x: Tensor = own.body(batch)
        return x[:, ::2] * x[:, 1::2]

    model = Told(has_gaps, body=tower(4), forwards=0)
    with listening() as said:
        autockpt.apply(model, "20MiB")
        train([model])
    assert autockpt.plan_of(model) is not None and not said


def test_a_model_that_calls_another_of_them() -> None:
    """The inner forward is a call of the outer one's, as in a model that has the other as a part."""

    def calls(own: Told, batch: Tensor) -> Any:
        return own.held[0](own.leave(own.own(batch)))

    def build() -> nn.Module:
        inner = Network(4)
        return nn.ModuleDict(
            {"outer": Told(calls, own=Network(4), leave=nn.Linear(8, 32), held=[inner]), "inner": inner}
        )

    held(build, partial(loop, lambda models, batch: loss_of(models["outer"](batch))))


def test_which_of_them_trains_depends_on_the_batch() -> None:
    def turns(run: Run) -> None:
        models: Any = run.model
        run.settled = 8

        def step(batch: Tensor) -> Tensor:
            loss = alternating(models, batch)
            loss.backward()
            run.update()
            return loss

        for number, batch in enumerate(steps(16)):
            batch[0, 0] = 1.0 if number % 2 else -1.0
            run.step(partial(step, batch), batch)

    held(lambda: nn.ModuleDict({"first": network(), "second": Network(5)}), turns, planned_by=8)


def pair() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"first": Network(3, 0.0, counting=False), "second": Network(3, 0.0, counting=False)}


def train(models: Mapping[str, nn.Module] | list[nn.Module], count: int = 4) -> list[Tensor]:
    every = list(models.values()) if isinstance(models, Mapping) else models
    gradients = []
    for batch in steps(count):
        torch.stack([loss_of(model(batch)) for model in every]).sum().backward()
        for model in every:
            gradients += [each.grad for each in model.parameters() if each.grad is not None]
            model.zero_grad()
    return gradients


def test_what_was_given_comes_back_and_names_say_which_model() -> None:
    models = pair()
    assert autockpt.apply(models, "lowest") is models
    train(models)
    plan = autockpt.plan_of(models)
    assert plan is not None
    assert {call.partition(".")[0] for segment in plan.segments for call in segment.calls} == {"first", "second"}
    assert autockpt.plan_of(models["first"]) is plan
    assert autockpt.plan_of([*models.values()]) is plan
    assert autockpt.plan_of([models["first"]]) is None  # it is on more than this one
    assert autockpt.remove(models) is models
    for model in models.values():
        assert all("forward" not in vars(module) for module in model.modules())
    assert autockpt.plan_of(models) is None


def test_a_list_names_models_by_their_numbers_and_pins_go_by_the_names() -> None:
    models = [*pair().values()]
    autockpt.apply(models, "lowest", keep="0.*")
    train(models)
    plan = autockpt.plan_of(models)
    assert plan is not None
    assert {call.partition(".")[0] for segment in plan.segments for call in segment.calls} == {"1"}


def test_a_plan_file_of_several_goes_on_several(tmp_path: Path) -> None:
    models, others = pair(), pair()
    autockpt.apply(models, "lowest")
    train(models)
    plan = autockpt.plan_of(models)
    assert plan is not None and plan.segments
    plan.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    autockpt.apply(others, plan=plan)
    assert autockpt.plan_of(others) == plan
    for one, other in zip(train(pair()), train(others), strict=True):
        assert torch.equal(one, other)
    autockpt.remove(others)
    with pytest.raises(NotApplicable, match="made for another model: Together has no 'first"):
        autockpt.apply([*pair().values()], plan=plan)


def test_one_of_several_is_not_removed_alone() -> None:
    models = pair()
    autockpt.apply(models, "lowest")
    with pytest.raises(NotApplicable, match=r"together with .second..*remove"):
        autockpt.remove(models["first"])
    with pytest.raises(NotApplicable, match="together with"):
        autockpt.apply(models["first"], "1GB")
    train(models)
    assert autockpt.plan_of(models) is not None
    autockpt.remove([*models.values()])  # whatever they are called
    assert autockpt.plan_of(models) is None


def test_applying_together_replaces_what_was_on_each() -> None:
    models = pair()
    for model in models.values():
        autockpt.apply(model, "1GB")
    autockpt.apply(models, "lowest")
    train(models)
    assert autockpt.plan_of(models) is not None
    autockpt.remove(models)
    assert all("forward" not in vars(module) for model in models.values() for module in model.modules())


def pickled(model: nn.Module) -> nn.Module:
    found: nn.Module = pickle.loads(pickle.dumps(model))
    return found


@pytest.mark.parametrize("through", [copy.deepcopy, pickled])
def test_a_copy_of_one_of_several_runs_plain(through: Callable[[nn.Module], nn.Module]) -> None:
    """An average of the weights needs no plan, and must not take the other models along."""
    models = pair()
    autockpt.apply(models, "lowest")
    train(models)
    model = models["first"]
    average = through(model)
    with listening() as said:
        found = train({"copy": average}, 2)
    plain = pair()["first"]
    plain.load_state_dict(model.state_dict())
    for one, other in zip(train({"plain": plain}, 2), found, strict=True):
        assert torch.equal(one, other)
    assert said == []
    plan = autockpt.plan_of(models)
    assert plan is not None and plan.segments
    assert len(pickle.dumps(model)) < 2 * len(pickle.dumps(plain))  # the other one does not go along


def test_a_model_that_never_runs_is_named_after_the_third_step() -> None:
    models = pair() | {"third": nn.Linear(4, 4)}
    with listening() as said:
        autockpt.apply(models, "1GB")
        train([models["first"], models["second"]], 3)
        assert said == []
        train([models["first"], models["second"]], 3)
    assert len(said) == 1 and "no step has called 'third' so far" in said[0]


def test_budgets_of_their_own_are_said_not_to_know_of_each_other() -> None:
    models = pair()
    with listening() as said:
        for model in models.values():
            autockpt.apply(model, "1GB")
        train(models, 6)
    apart = [each for each in said if "train in one loop" in each]
    assert len(apart) == 2  # both are told, once
    assert "apply([one, other], budget)" in apart[0] and "Network (1.00 GB)" in apart[0]


def test_models_that_train_one_after_the_other_are_not_said_to_train_together() -> None:
    with listening() as said:
        for model in pair().values():
            autockpt.apply(model, "1GB")
            train([model], 4)
    assert said == []


@pytest.mark.parametrize(
    ("models", "match"),
    [
        ([], "no model to plan for"),
        ({}, "no model to plan for"),
        ([nn.Linear(2, 2), 3], "'1' of those given is 3"),
        ("gpt2", "is a torch.nn.Module, or several are in a list"),
        ([shared := nn.Linear(2, 2), shared], "the same model"),
        ([whole := nn.Sequential(nn.Linear(2, 2)), whole[0]], "'1' lies inside '0'"),
        ({"a.b": nn.Linear(2, 2)}, "name"),
        ({"train": nn.Linear(2, 2)}, "'train'"),
        ({3: nn.Linear(2, 2)}, "name"),
    ],
)
def test_models_that_cannot_be_planned_together(models: Any, match: str) -> None:
    for call in (partial(autockpt.apply, budget="1GB"), autockpt.remove, autockpt.plan_of):
        with pytest.raises(NotApplicable, match=match):
            call(models)


def test_inputs_are_those_of_one_model() -> None:
    models = pair()
    with pytest.raises(NotApplicable, match="say what one model is given"):
        autockpt.apply(models, "1GB", inputs=steps(1)[0])
    assert all("forward" not in vars(model) for model in models.values())


def bodies() -> nn.ModuleDict:
    """Two models with a body each, one of which is never patched."""
    return nn.ModuleDict({name: nn.Sequential(Network(3, 0.0, counting=False), nn.Linear(8, 8)) for name in "ab"})


INSIDE = (("0", True, True), ("0.blocks.1", False, True), ("1", True, False), ("0", False, False))


@swept(
    "part, together, planned",
    *INSIDE,
    *sorted({*itertools.product(("0", "0.blocks.1", "1"), (True, False), (True, False))} - {*INSIDE}),
    kept=4,
)
def test_a_part_of_a_model_that_is_held_to_a_budget_is_refused(part: str, together: bool, planned: bool) -> None:
    """It was accepted, and the training was told of hooks around its forward that were autockpt's own."""
    models = bodies()
    held_to = models if together else models["a"]
    autockpt.apply(held_to, "lowest")
    if planned:
        train({name: models[name] for name in ("ab" if together else "a")})
        assert autockpt.plan_of(held_to) is not None
    inner = models["a"].get_submodule(part)
    with listening() as said:
        for asked in ({"budget": "1GB"}, {"plan": Plan.of([])}):
            with pytest.raises(NotApplicable, match=rf"is '{part}' in a Sequential that is held to a budget.*remove"):
                autockpt.apply(inner, **asked)
        train({name: models[name] for name in ("ab" if together else "a")})
    assert said == []
    autockpt.remove(held_to)
    assert autockpt.apply(inner, "1GB") is inner


def test_a_part_of_a_model_that_is_gone_is_a_model() -> None:
    models = bodies()
    autockpt.apply(models["a"], "1GB")
    part = models["a"].get_submodule("0")
    del models
    assert autockpt.apply(part, "1GB") is part
