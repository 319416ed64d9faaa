"""Putting a plan on a model and taking it off: what changes, what does not, what is refused."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import re
import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autockpt import NotApplicable, Plan, Segment, apply
from tests.doors import install, installed_plan, uninstall
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, Block, Tower, Twice, batch, cnn, images, mlp, summed
from tests.toys.chains import InTurn, through
from tests.toys.told import Told
from tests.twin import Outcome, counting_replays

PLAN = Plan.of([["blocks.0", "blocks.1"], "blocks.2.first", "blocks.3"])


def dicts(model: nn.Module) -> list[dict[str, Any]]:
    return [dict(module.__dict__) for module in model.modules()]


def planned() -> Tower:
    model = Tower()
    install(model, PLAN)
    return model


def test_removing_leaves_no_trace() -> None:
    model = Tower()
    before = dicts(model)
    install(model, PLAN)
    assert installed_plan(model) is PLAN
    assert dicts(model) != before
    uninstall(model)
    assert dicts(model) == before
    assert installed_plan(model) is None
    uninstall(model)
    assert dicts(model) == before


def test_names_state_signature_and_classes_stay() -> None:
    plain, model = Tower(), planned()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    assert inspect.signature(model.blocks[0].forward) == inspect.signature(plain.blocks[0].forward)
    assert type(model.blocks[0]) is Block
    assert str(model) == str(plain)


def test_applying_again_replaces_the_plan() -> None:
    model = planned()
    other = Plan.of(["blocks.4"])
    install(model, other)
    assert installed_plan(model) is other
    assert [name for name, module in model.named_modules() if "forward" in module.__dict__] == ["", "blocks.4"]
    install(model, Plan())
    assert installed_plan(model) == Plan()
    uninstall(model)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_an_average_of_the_weights_runs_its_own() -> None:
    model = planned()
    average = copy.deepcopy(model)
    assert installed_plan(average) == PLAN
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.zero_()
    assert not average(batch(4, WIDTH)).any()
    loss = summed(average)
    loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    uninstall(average)
    assert installed_plan(model) is PLAN


def saved(model: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


class Stateful(Tower):
    """Says itself what a pickle of it holds."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "saved": True}


@pytest.mark.parametrize("governed", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", [Tower, Stateful])
def test_a_pickled_model_is_the_plain_one(kind: type[Tower], own: bool, governed: bool) -> None:
    """Its file named private modules of autockpt, and could not be loaded without it."""
    model = kind()
    for each in (model, model.blocks[0]) if own else ():
        each.forward = types.MethodType(type(each).forward, each)
    ways: list[Callable[[nn.Module], bytes]] = [saved, *(partial(pickle.dumps, protocol=each) for each in range(6))]
    before = [list(each) for each in dicts(model)]
    if governed:
        apply(model, "lowest")
        steps(model, summed, count=4)
    else:
        install(model, PLAN)
    assert installed_plan(model) is not None
    found = [way(each) for way in ways for each in (model, model.blocks[0])]
    loaded = pickle.loads(found[2])
    assert installed_plan(loaded) is None
    assert steps(copy.deepcopy(model), summed).differences(steps(loaded, summed)) == []
    uninstall(model)
    assert [way(each) for way in ways for each in (model, model.blocks[0])] == found
    assert [list(each) for each in dicts(model)] == before


def test_a_module_that_copies_itself_still_does() -> None:
    class Shares(Tower):
        def __deepcopy__(self, memo: dict[int, Any]) -> Shares:
            return self

    model = Shares()
    install(model, PLAN)
    assert copy.deepcopy(model) is model


def test_a_forward_that_the_instance_already_had_is_wrapped_and_put_back() -> None:
    """As accelerate does: it moves arguments in a forward of the instance's own."""
    model = Tower()
    seen: list[Tensor] = []

    def hooked(module: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(hidden)
        return type(module).forward(module, hidden, *args, **kwargs)

    own = functools.partial(hooked, model.blocks[0])
    model.blocks[0].forward = own
    install(model, PLAN)
    with counting_replays() as replays:
        summed(model).backward()
    assert replays and len(seen) == 2
    uninstall(model)
    assert model.blocks[0].__dict__["forward"] is own


def test_removing_under_someone_elses_patch_names_it_and_changes_nothing() -> None:
    model = planned()
    ours = model.blocks[1].forward
    model.blocks[1].__dict__["forward"] = lambda *args, **kwargs: ours(*args, **kwargs)
    before = dicts(model)
    with pytest.raises(NotApplicable, match=r"'blocks\.1'"):
        uninstall(model)
    with pytest.raises(NotApplicable, match=r"'blocks\.1'"):
        install(model, Plan())
    assert dicts(model) == before
    model.blocks[1].__dict__["forward"] = ours
    uninstall(model)


def test_removing_under_someone_elses_patch_of_the_root() -> None:
    model = planned()
    ours = model.forward
    model.__dict__["forward"] = lambda x: ours(x)
    with pytest.raises(NotApplicable, match="replaced"):
        uninstall(model)
    model.__dict__["forward"] = ours
    uninstall(model)


def test_a_member_taken_out_of_the_model_does_not_hinder() -> None:
    model = planned()
    model.blocks[0] = nn.Identity()
    uninstall(model)
    assert installed_plan(model) is None


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan.of(["blocks.0", "blocks.9", "tail"]), r"Tower has no 'blocks\.9', 'tail'"),
        (Plan.of([["blocks.0.first", "blocks.1"]]), "only calls made by the same forward"),
        (Plan.of([""]), "as a whole"),
        (Plan(segments=(Segment(calls=("blocks.0#0",), parent="trunk#0"),)), "has no 'trunk'"),
        (Plan(segments=(Segment(calls=("blocks.0#0",), buffers=("mean",)),)), "no buffer 'mean'"),
    ],
    ids=["missing", "two parents", "root", "missing parent", "missing buffer"],
)
def test_a_plan_that_does_not_fit_is_refused_before_anything_changes(plan: Plan, message: str) -> None:
    model = planned()
    before = dicts(model)
    with pytest.raises(NotApplicable, match=message):
        install(model, plan)
    assert dicts(model) == before


def test_one_call_under_two_names_is_refused() -> None:
    with pytest.raises(NotApplicable, match="twice"):
        install(Twice(), Plan.of(["block.0", "other.1"]))


def test_data_parallel_and_its_replicas_are_refused() -> None:
    with pytest.raises(NotApplicable, match="DataParallel"):
        install(nn.DataParallel(mlp()), Plan.of(["module.0"]))
    replica = mlp()
    replica.__dict__["_is_replica"] = True
    with pytest.raises(NotApplicable, match="DataParallel"):
        install(replica, Plan.of(["0"]))


def test_two_plans_do_not_overlap() -> None:
    model = planned()
    before = dicts(model)
    with pytest.raises(NotApplicable, match="another module"):
        install(model.blocks[2], Plan.of(["first"]))
    assert installed_plan(model.blocks[2]) is None
    assert dicts(model) == before


@pytest.mark.parametrize("name", ["blocks.0", "blocks.2"], ids=["member", "parent"])
def test_a_plan_is_not_removed_from_a_part_of_its_model(name: str) -> None:
    model = planned()
    before = dicts(model)
    with pytest.raises(NotApplicable, match=re.escape(f"in which this one is '{name}'")):
        uninstall(model.get_submodule(name))
    assert dicts(model) == before


def test_a_planned_model_inside_a_planned_model() -> None:
    def student() -> Told:
        return Told(lambda own, x: own.teacher(x) * own.tower(x) + own.teacher(x + 1), teacher=Tower(), tower=Tower())

    plain, model = student(), student()
    install(model.teacher, PLAN)
    install(model, Plan.of([["tower.blocks.0", "tower.blocks.1"]]))
    expected = steps(plain, summed)
    with counting_replays() as replays:
        assert expected.differences(steps(model, summed)) == []
    assert len(replays) == 2 * (3 + 1 + 3)


def test_a_planned_model_inside_a_member_of_another_plan_runs_plain() -> None:
    plain, model = (nn.Sequential(nn.Sequential(Tower()), nn.Linear(1, 1)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    install(model.get_submodule("0.0"), PLAN)
    install(model, Plan.of(["0"]))
    expected = steps(plain, summed)
    with counting_replays() as replays:
        assert expected.differences(steps(model, summed)) == []
    assert len(replays) == 2


def test_a_member_called_by_itself_runs_plain() -> None:
    model = planned()
    with counting_replays() as replays:
        hidden, _, _ = model.blocks[0](batch(4, WIDTH), mask=torch.ones(4, WIDTH))
        hidden.sum().backward()
    assert replays == []


def test_a_parent_that_another_module_calls() -> None:
    """The list's owner is not the one that calls the blocks."""

    owner = InTurn(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
    caller = Told(lambda own, x: through(own.owner.blocks, x), owner=owner)
    assert_same(caller, [["owner.blocks.0", "owner.blocks.1"]], summed)


def test_parents_given_by_the_plan() -> None:
    segment = Segment(calls=("block#0", "block#1"), parent="#0")
    assert_same(Twice(), Plan(segments=(segment,)), summed)


def test_threads_share_nothing() -> None:
    expected = steps(cnn(), images, count=6)
    models = [cnn() for _ in range(3)]
    found: list[Outcome | None] = [None] * 3

    def train(index: int) -> None:
        install(models[index], Plan.of([["0", "1"], "2"]))
        found[index] = steps(models[index], images, count=6)

    with counting_replays() as replays:
        threads = [threading.Thread(target=train, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(replays) == 3 * 6 * 2
    for outcome in found:
        assert outcome is not None and expected.differences(outcome) == []
