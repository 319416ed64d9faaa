"""Replays that leave calls inside their own to replays of their own: bit for bit the plain step, and less at once."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autockpt
from autockpt import InvalidFile, NotApplicable, Plan, Segment, is_recomputing
from tests.doors import Frame, data_files, frames_thread, install
from tests.frames.comparing import Run, assert_frames_go, steps
from tests.frames.models import WIDTH, batch, penalised, summed
from tests.frames.test_nested import Stage, autocast, penalises
from tests.rows import crossed
from tests.toys.told import Told, with_linear
from tests.twin import counting_replays, listening

Checks = Literal["never", "sampled", "always"]


def block(momentum: float | None = 0.1) -> nn.Module:
    """Its own code computes between its children, of which one runs twice; statistics and random numbers in two."""
    one, twice, two = Stage(momentum), nn.Linear(WIDTH, WIDTH), Stage(momentum)
    return Told(computes_between, norm=nn.LayerNorm(WIDTH), one=one, twice=twice, two=two)


def computes_between(own: Told, x: Tensor) -> Any:
    x = x + own.one(own.norm(x))
    return torch.tanh(own.twice(x)) + own.twice(own.two(x)).mul(0.5)


def blocks(depth: int = 4, momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(block(momentum) for _ in range(depth)))


def segment(*calls: str, **others: Any) -> Segment:
    return Segment(calls=tuple(call if "#" in call else f"{call}#0" for call in calls), **others)


def deep(number: int) -> tuple[Segment, ...]:
    """What is recomputed inside a block: a call with something inside, and a run in parts."""
    name = str(number)
    return (
        segment(f"{name}.one", inner=(segment(f"{name}.one.0", f"{name}.one.1", f"{name}.one.2"),)),
        segment(f"{name}.twice#0", f"{name}.two", f"{name}.twice#1", cuts=(0, 2, 1)),
    )


PLANS = {
    "a call": Plan(segments=(segment("1", inner=(segment("1.one"),)),)),
    "a run, and what is in another": Plan(
        segments=(segment("2", inner=(segment("2.norm", "2.one"), segment("2.two.0", "2.two.1"))),)
    ),
    "all": Plan(
        segments=(segment("1", inner=tuple(map(segment, ("1.norm", "1.one", "1.twice#0", "1.two", "1.twice#1")))),)
    ),
    "in parts": Plan(
        segments=(segment("0", "1", "2", "3", cuts=(0, 1, 2, 1), inner=tuple(segment(f"{i}.one") for i in range(4))),)
    ),
    "deep": Plan(
        segments=(segment("0", "1", "2", "3", cuts=(0, 1, 2, 1), inner=tuple(s for i in range(4) for s in deep(i))),)
    ),
}


@crossed(run=[summed, autocast, penalised], plan=PLANS, check=["never", "sampled", "always"])
def test_a_step_that_recomputes_inside_calls_is_the_plain_one(run: Run, plan: Plan, check: Checks) -> None:
    model, planned = blocks(), blocks()
    install(planned, plan, check)
    with listening() as said, counting_replays() as replays:
        found = steps(planned, run, count=3)
    assert steps(model, run, count=3).differences(found) == [] and len(replays) >= 6
    assert not said


def drawn(model: nn.Module, name: str, dice: random.Random) -> tuple[Segment, ...]:
    """Runs of what a call calls, as often as it does, and of what those call."""
    module = model.get_submodule(name)
    row = [f"{name}.{child}#0" for child, _ in module.named_children()]
    found: list[Segment] = []
    while row:
        length = dice.randint(1, 3)
        run, row = row[:length], row[length:]
        inner = tuple(each for call in run for each in drawn(model, call[:-2], dice))
        cuts = [0, *(min(dice.randint(0, 2), len(run) - 1) for _ in run[1:])]
        if dice.random() < 0.6:
            found.append(segment(*run, cuts=tuple(cuts) if any(cuts) else (), inner=inner))
        else:
            found += inner
    return tuple(found)


@given(seed=st.integers(0, 10_000), check=st.booleans(), momentum=st.sampled_from([0.1, None]), by=st.data())
@settings(max_examples=40, deadline=None, database=None, derandomize=True)
def test_anything_inside_is_exact(seed: int, check: bool, momentum: float | None, by: st.DataObject) -> None:
    run, dice = by.draw(st.sampled_from([summed, autocast, penalised])), random.Random(seed)
    model, planned = blocks(3, momentum), blocks(3, momentum)
    cuts = [0, dice.randint(0, 2), dice.randint(0, 2)]
    inner = tuple(each for number in range(3) for each in drawn(model, str(number), dice))
    plan = Plan(segments=(segment("0", "1", "2", cuts=tuple(cuts) if any(cuts) else (), inner=inner),))
    install(planned, plan, "always" if check else "never")
    assert steps(model, run).differences(steps(planned, run)) == []


def test_each_is_replayed_when_backward_comes_to_it_and_less_stands_at_once() -> None:
    planned, most = blocks(1), 0
    install(planned, Plan(segments=(segment("0", inner=(segment("0.norm", "0.one"), segment("0.two"))),)))
    with counting_replays() as replays, pytest.MonkeyPatch.context() as patch:
        original: Any = Frame.replay

        def replay(frame: Frame) -> None:
            nonlocal most
            original(frame)
            most = max(most, len({id(slot) for _, slot in frame.alive() if slot.value is not None}))

        patch.setattr(Frame, "replay", replay)
        summed(planned).backward()
    assert replays == [1, 1, 2] and most < 12  # the block; two; norm and one: of the 20 that all save


@pytest.mark.parametrize("name", PLANS)
def test_frames_are_gone_with_backward(name: str) -> None:
    planned = blocks()
    install(planned, PLANS[name])
    assert_frames_go(lambda: summed(planned).backward())


@pytest.mark.parametrize("check", ["never", "always"])
def test_a_graph_that_is_kept_can_be_gone_through_again(check: Checks) -> None:
    """A backward that keeps its graph replays all at once; the last one does not."""
    planned = blocks(2)
    install(planned, Plan(segments=(segment("1", inner=(segment("1.one"), segment("1.two"))),)), check)
    loss, weights = summed(planned), [*planned.parameters()]
    with counting_replays() as replays:
        first, second = (torch.autograd.grad(loss, weights, retain_graph=True) for _ in range(2))
        assert replays == [1, 1]
        third = torch.autograd.grad(loss, weights)
    assert all(map(torch.equal, first, second)) and all(map(torch.equal, first, third)) and len(replays) == 5


def test_two_backwards_that_read_different_parts() -> None:
    plain, planned = blocks(), blocks()
    install(planned, PLANS["deep"])

    def run(model: nn.Sequential) -> list[Tensor]:
        torch.manual_seed(3)
        kept: list[Tensor] = []
        handle = model.get_submodule("1.one").register_forward_hook(lambda *given: kept.append(given[2]))
        loss = summed(model)
        handle.remove()
        some = [*model[0].parameters(), *model.get_submodule("1.norm").parameters()]
        early = torch.autograd.grad(kept[0].square().sum(), some, retain_graph=True)
        return [*early, *torch.autograd.grad(loss, [*model.parameters()])]

    assert all(map(torch.equal, run(plain), run(planned)))


def has_within(act: Callable[..., Any], **parts: Any) -> nn.Module:
    """A layer whose own forward does what `act` says, and something that is computed behind it."""
    within = with_linear(act, **parts)
    return with_linear(lambda own, x: own.linear(own.within(x).tanh()), within=within)


@pytest.mark.parametrize("check", ["never", "sampled", "always"])
def test_a_call_inside_that_takes_a_gradient_in_its_own_forward(check: Checks) -> None:
    """Nothing is held that it could be taken of: all is replayed at once, or backward has what was spilled."""
    torch.manual_seed(0)
    model = nn.Sequential(*(has_within(penalises) for _ in range(3)))
    planned = copy.deepcopy(model)
    install(planned, Plan(segments=(segment("1", inner=(segment("1.within"),)),)), check)
    with listening() as said:
        found = steps(planned, summed, count=3)
    assert steps(model, summed, count=3).differences(found) == []
    assert len([each for each in said if "takes a gradient in its own forward" in each]) == (check != "never")


def drifts(own: Told, hidden: Tensor) -> Any:
    """Counts its calls and computes with that from the third on: a replay of a replay makes something else."""
    own.seen.append(1)
    return own.linear(hidden * (1 + len(own.seen))).tanh()


@pytest.mark.parametrize("check", ["sampled", "always"])
def test_a_rehearsal_goes_on_with_what_was_spilled_where_a_call_inside_cannot_be_replayed(check: Checks) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(has_within(drifts, seen=[]) for _ in range(2)))
    planned = copy.deepcopy(model)
    install(planned, Plan(segments=(segment("0", inner=(segment("0.within"),)),)), check)
    with listening() as said:
        found = steps(planned, summed, count=3)
    assert steps(model, summed, count=3).differences(found) == []
    assert [each for each in said if "kept from now on" in each]


def test_an_error_in_the_midst_leaves_the_thread_as_it_was() -> None:
    plain, planned = blocks(2), blocks(2)
    install(planned, Plan(segments=(segment("1", inner=(segment("1.one"), segment("1.two"))),)))

    def fails(*_: object) -> None:
        if is_recomputing():
            raise ValueError("on purpose")

    for name in ("1.one.1", "1.two.3"):
        hook = planned.get_submodule(name).register_forward_pre_hook(fails)
        with pytest.raises(ValueError, match="on purpose"):
            summed(planned).backward()
        hook.remove()
        assert frames_thread.scope is None and not is_recomputing()
    for model in (plain, planned):
        model.load_state_dict(blocks(2).state_dict())
        model.zero_grad()
    assert steps(plain, summed).differences(steps(planned, summed)) == []


def test_gradients_of_an_input_alone() -> None:
    plain, planned = blocks(), blocks()
    install(planned, PLANS["deep"])
    found: list[Tensor] = []
    for model in (plain, planned):
        torch.manual_seed(3)
        x = batch(4, WIDTH).requires_grad_()
        found += torch.autograd.grad(model(x).square().sum(), x)
    assert torch.equal(*found)


def test_verify_compares_what_is_replayed_inside() -> None:
    """Also what the first replay leaves to others; a call there that drifts is named."""
    found = autockpt.verify(blocks(), batch(8, WIDTH), plan=PLANS["deep"])
    assert found.verdict == "exact" and found.replays > 8
    torch.manual_seed(0)
    model = nn.Sequential(*(has_within(drifts, seen=[]) for _ in range(2)))
    plan = Plan(segments=(segment("0", inner=(segment("0.within"),)),))
    assert autockpt.verify(model, batch(8, WIDTH), plan=plan).verdict != "exact"


@pytest.mark.parametrize(
    ("change", "inside", "said"),
    [
        ({"keep": ("1.one#0",)}, {}, "keeps or skips units, or moves tensors"),
        ({"skip": ("1.one#0",)}, {}, "keeps or skips units, or moves tensors"),
        ({"offload": "boundary"}, {}, "keeps or skips units, or moves tensors"),
        ({}, {"keep": ("1.one.0#0",)}, "calls of modules only"),
        ({}, {"offload": "boundary"}, "calls of modules only"),
        ({}, {"calls": ("1#0/tanh#0",)}, "calls of modules only"),
        ({}, {"calls": ("1#0",)}, "twice"),
        ({}, {"cuts": (1,)}, "0 for the first"),
        ({}, {"until": "1#0"}, "says until when, and moves nothing"),
    ],
    ids=str,
)
def test_what_cannot_lie_inside_is_refused(change: dict[str, Any], inside: dict[str, Any], said: str) -> None:
    inner = msgspec.structs.replace(segment("1.one"), **inside)
    with pytest.raises(InvalidFile, match=said):
        Plan(segments=(msgspec.structs.replace(segment("1", inner=(inner,)), **change),))


@pytest.mark.parametrize("inner", ["2.one", "1.three", "1.norm.0"])
def test_what_is_not_inside_is_refused(inner: str) -> None:
    with pytest.raises(NotApplicable, match=r"is not inside|has no"):
        install(blocks(), Plan(segments=(segment("1", inner=(segment(inner),)),)))


def test_a_plan_file_has_it_and_none_is_too_deep() -> None:
    document = data_files.encode(PLANS["deep"]).decode()
    assert data_files.decode(document.encode(), Plan, source="plan.json") == PLANS["deep"]
    inner = '{"calls":["1.one#0"],"inner":['
    for depth in (20, 100_000):
        with pytest.raises(InvalidFile):
            data_files.decode(
                f'{{"type":"autockpt.plan/1","segments":[{inner * depth}{"]}" * depth}]}}'.encode(), Plan, source="p"
            )
    nested = segment("0")
    for number in range(2000):
        nested = segment(f"{number}", inner=(nested,))
    with pytest.raises(InvalidFile, match="levels"):
        Plan(segments=(nested,))
