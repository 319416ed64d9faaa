"""Replays in parts, to any depth: bit for bit the plain step, and never more at once than a part."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autockpt import InvalidFile, NotApplicable, Plan, Segment, is_recomputing
from tests.doors import Frame, ReplayChecks, data_files, govern, install, patched_behind, ranks_refuse
from tests.frames.comparing import Run, assert_frames_go, assert_same, steps
from tests.frames.models import WIDTH, Containers, Tower, batch, cnn, images, mlp, penalised, summed
from tests.rows import crossed
from tests.toys.told import Told, overwriting, with_linear
from tests.twin import counting_replays, listening

Cuts = tuple[int, ...]
Checks = Literal["never", "sampled", "always"]


def plan_of(calls: Sequence[str], cuts: Sequence[int]) -> Plan:
    return Plan(segments=(Segment(calls=tuple(f"{call}#0" for call in calls), cuts=tuple(cuts)),))


def numbered(cuts: Sequence[int], prefix: str = "") -> Plan:
    return plan_of([f"{prefix}{number}" for number in range(len(cuts))], cuts)


class Stage(nn.Sequential):
    """Running statistics, random numbers, and more saved than returned."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        wide = 2 * WIDTH
        norm = nn.BatchNorm1d(wide, momentum=momentum)
        super().__init__(nn.Linear(WIDTH, wide), norm, nn.Dropout(0.2), nn.Tanh(), nn.Linear(wide, WIDTH))


def chain(depth: int = 8, momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Stage(momentum) for _ in range(depth)))


def autocast(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return summed(model).float()


LEVELS = [(0, 0, 0, 0, 1, 0, 0, 0), (0, 3, 2, 0, 1, 2, 0, 0), (0, 1, 1, 1, 1, 1, 1, 1), (0, 7, 6, 5, 4, 3, 2, 1)]


@crossed(run=[summed, autocast, penalised], cuts=LEVELS, check=["never", "sampled", "always"])
def test_a_step_that_recomputes_in_parts_is_the_plain_one(run: Run, cuts: Cuts, check: Checks) -> None:
    model, planned = chain(), chain()
    install(planned, numbered(cuts), check)
    with listening() as said, counting_replays() as replays:
        found = steps(planned, run, count=3)
    assert steps(model, run, count=3).differences(found) == [] and replays
    assert not [each for each in said if "kept from now on" in each]


@given(
    depth=st.integers(2, 9),
    levels=st.lists(st.integers(0, 8), min_size=8, max_size=8),
    check=st.booleans(),
    by=st.data(),
)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_any_cuts_are_exact(depth: int, levels: list[int], check: bool, by: st.DataObject) -> None:
    cuts = [0, *(min(level, depth - 1) for level in levels[: depth - 1])]
    if not any(cuts):
        cuts[-1] = 1
    momentum, run = by.draw(st.sampled_from([0.1, None])), by.draw(st.sampled_from([summed, autocast, penalised]))
    model, planned = chain(depth, momentum), chain(depth, momentum)
    install(planned, numbered(cuts), "always" if check else "never")
    assert steps(model, run).differences(steps(planned, run)) == []


@pytest.mark.parametrize(
    ("build", "run", "plan"),
    [
        (mlp, summed, numbered((0, 2, 0, 1, 0, 0, 2, 0, 1, 0, 0))),
        (cnn, images, numbered((0, 1, 1))),
        (Tower, summed, numbered((0, 1, 2, 1, 0), "blocks.")),
        (lambda: Tower(early=True), summed, numbered((0, 1, 2, 1, 1), "blocks.")),
        (Containers, summed, numbered((0, 2, 1, 2, 1, 0, 1), "stages.")),
    ],
    ids=["layers", "batch norm, in place", "masks and glue", "another depth each step", "containers"],
)
@pytest.mark.filterwarnings("ignore:.*does not fit")
def test_other_models(build: Callable[[], nn.Module], run: Run, plan: Plan) -> None:
    assert_same(build(), plan, run)


def test_a_frame_goes_in_parts_as_the_cuts_say() -> None:
    """The outermost parts are those of the lowest level, whatever stands between them; the last comes first."""
    planned = chain(5)
    install(planned, numbered((0, 2, 1, 0, 1)))
    with counting_replays() as replays:
        summed(planned).backward()
    assert replays == [5, 1, 2, 2, 1, 1]  # all; [4]; [2, 3]; [0, 1], and its parts


def test_no_more_than_a_part_stands_at_once() -> None:
    """What is filled at once are the slots of one part."""
    planned, most = chain(8), 0
    install(planned, numbered((0, 1, 1, 1, 1, 1, 1, 1)))
    original: Any = Frame.replay

    def replay(frame: Frame) -> None:
        nonlocal most
        original(frame)
        most = max(most, len({id(slot) for _, slot in frame.alive() if slot.value is not None}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Frame, "replay", replay)
        summed(planned).backward()
    assert most == 7  # what one stage saves


def test_frames_are_gone_with_backward() -> None:
    planned = chain()
    install(planned, numbered(LEVELS[1]))
    assert_frames_go(lambda: summed(planned).backward())


@pytest.mark.parametrize("check", ["never", "always"])
def test_a_graph_that_is_kept_can_be_gone_through_again(check: Checks) -> None:
    """A backward that keeps its graph replays all at once; the last one goes in parts."""
    planned = chain()
    install(planned, numbered(LEVELS[1]), check)
    loss, weights = summed(planned), [*planned.parameters()]
    with counting_replays() as replays:
        first, second = (torch.autograd.grad(loss, weights, retain_graph=True) for _ in range(2))
        assert replays == [8, 8]
        third = torch.autograd.grad(loss, weights)
    assert all(map(torch.equal, first, second)) and all(map(torch.equal, first, third)) and len(replays) > 5


def test_two_backwards_that_read_different_parts() -> None:
    plain, planned = chain(), chain()
    install(planned, numbered(LEVELS[1]))

    def run(model: nn.Sequential) -> list[Tensor]:
        torch.manual_seed(3)
        kept: list[Tensor] = []
        handle = model[3].register_forward_hook(lambda *given: kept.append(given[2]))
        loss = summed(model)
        handle.remove()
        early = torch.autograd.grad(kept[0].square().sum(), [*model[:4].parameters()], retain_graph=True)
        return [*early, *torch.autograd.grad(loss, [*model.parameters()])]

    assert all(map(torch.equal, run(plain), run(planned)))


def penalises(own: Told, hidden: Tensor) -> Any:
    """Takes a gradient in its own forward, and has a part of it in its result."""
    with torch.enable_grad():
        inner = hidden.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(own.linear(inner).tanh().square().sum(), inner)
    return own.linear(hidden) + gradient


@pytest.mark.parametrize("check", ["never", "sampled", "always"])
def test_a_call_that_takes_a_gradient_in_its_own_forward(check: Checks) -> None:
    """A descent saves nothing that it could be taken of: all is replayed at once, or backward has what was spilled."""
    torch.manual_seed(0)
    model = nn.Sequential(*(with_linear(penalises) for _ in range(4)))
    planned = copy.deepcopy(model)
    install(planned, numbered((0, 1, 2, 1)), check)
    with listening() as said:
        found = steps(planned, summed, count=3)
    assert steps(model, summed, count=3).differences(found) == []
    kept = [each for each in said if "takes a gradient in its own forward" in each]
    assert len(kept) == (check != "never")


def penalises_later(own: Told, hidden: Tensor) -> Any:
    """Does so from some step on, which no rehearsal has seen."""
    return penalises(own, hidden) if getattr(own, "later", False) else own.linear(hidden)


@pytest.mark.parametrize("check", ["never", "sampled", "always"])
def test_a_later_descent_that_fails_is_a_replay_at_once(check: Checks) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(with_linear(penalises_later) for _ in range(4)))
    planned = copy.deepcopy(model)
    install(planned, numbered((0, 1, 2, 1)), check)
    with listening() as said:
        assert steps(model, summed, count=3).differences(steps(planned, summed, count=3)) == [] and not said
        for stage in (*model, *planned):
            stage.later = True
        assert steps(model, summed, count=2).differences(steps(planned, summed, count=2)) == []
    assert len([each for each in said if "takes a gradient in its own forward" in each]) == (check != "never")


@pytest.mark.parametrize("check", ["sampled", "always"])
def test_a_rehearsal_goes_on_with_what_was_spilled_where_a_part_cannot_be_replayed(check: Checks) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), overwriting(WIDTH), nn.Linear(WIDTH, WIDTH))
    planned = copy.deepcopy(model)
    install(planned, numbered((0, 1, 1, 1)), check)
    with listening() as said:
        found = steps(planned, summed, count=3)
    assert steps(model, summed, count=3).differences(found) == []
    assert [each for each in said if "kept from now on" in each]


def test_without_a_comparison_that_is_an_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), overwriting(WIDTH), nn.Linear(WIDTH, WIDTH))
    install(model, numbered((0, 1, 1)))
    with pytest.raises(RuntimeError, match=r"in-?place operation"):
        summed(model).backward()


def remembers(own: Told, hidden: Tensor) -> Any:
    """Fills a list, which a replay would do again: once for each descent."""
    own.seen.append(1)
    return own.linear(hidden) * len(own.seen)


def test_a_rehearsed_descent_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(with_linear(remembers, seen=[]) for _ in range(4)))
    planned = copy.deepcopy(model)
    install(planned, numbered((0, 1, 2, 1)), "sampled")
    with listening() as said:
        found = steps(planned, summed, count=2)
    assert steps(model, summed, count=2).differences(found) == []
    assert all(isinstance(stage, Told) and len(stage.seen) == 2 for stage in planned) and said


def test_an_error_in_a_descent_is_that_of_the_call() -> None:
    planned = chain(4)
    install(planned, numbered((0, 1, 1, 1)))
    loss = summed(planned)

    def fails(*_: object) -> None:
        if is_recomputing():
            raise ValueError("on purpose")

    planned.get_submodule("1.3").register_forward_pre_hook(fails)  # a hook of now does not run in a replay
    loss.backward()
    planned = chain(4)
    install(planned, numbered((0, 1, 1, 1)))
    planned.get_submodule("1.3").register_forward_pre_hook(fails)
    with pytest.raises(ValueError, match="on purpose"):
        summed(planned).backward()


def test_backward_in_another_thread() -> None:
    plain, planned = chain(), chain()
    install(planned, numbered(LEVELS[1]))
    torch.manual_seed(3)
    summed(plain).backward()
    torch.manual_seed(3)
    loss = summed(planned)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    for one, two in zip(plain.parameters(), planned.parameters(), strict=True):
        assert one.grad is not None and two.grad is not None and torch.equal(one.grad, two.grad)


def test_copies_of_a_model_go_in_parts_too() -> None:
    model = chain()
    expected = steps(copy.deepcopy(model), summed)
    install(model, numbered(LEVELS[1]))
    for copied in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))):
        with counting_replays() as replays:
            assert expected.differences(steps(copied, summed)) == []
        assert len(replays) > 4


def test_nothing_goes_around_replayers_where_nothing_is_cut() -> None:
    model = chain()
    install(model, Plan.of([["0", "1"], "4"]))
    known = patched_behind(model)
    assert known is not None and known[1].table.around == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cuts": (1, 0, 1)}, "0 for the first"),
        ({"cuts": (0, 1)}, "one for each of its 3 calls"),
        ({"cuts": (0, 0, 0)}, "some part does"),
        ({"cuts": (0, 3, 1)}, "a level below 3"),
        ({"keep": ("1.0#0",)}, "keeps or skips units"),
        ({"skip": ("1.0#0",)}, "keeps or skips units"),
        ({"offload": "boundary"}, "moves tensors"),
    ],
    ids=str,
)
def test_what_cannot_go_in_parts_is_refused(change: dict[str, Any], said: str) -> None:
    segment = Segment(calls=("0#0", "1#0", "2#0"), cuts=(0, 2, 1))
    assert Plan(segments=(segment,)).segments == (segment,)
    with pytest.raises(InvalidFile, match=said):
        Plan(segments=(msgspec.structs.replace(segment, **change),))


def test_levels_are_no_negative_numbers() -> None:
    plan = Plan(segments=(Segment(calls=("0#0", "1#0"), cuts=(0, 1)),))
    document = data_files.encode(plan).decode()
    assert data_files.decode(document.encode(), Plan, source="plan.json") == plan and document.count("[0,1]") == 1
    for cuts in ("[0,-1]", "[0,1.5]", '[0,"1"]', "[0,99999999]", "1"):
        with pytest.raises(InvalidFile):
            data_files.decode(document.replace("[0,1]", cuts).encode(), Plan, source="plan.json")


def test_models_whose_replays_run_collectives_have_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan = chain(3), numbered((0, 1, 1))
    ranks_refuse.refuse_parts(model, plan)
    monkeypatch.setattr(ranks_refuse, "runs_collectives", lambda model: True)
    ranks_refuse.refuse_parts(model, Plan.of([["0", "1"]]))
    with pytest.raises(NotApplicable, match=r"0#0.* in parts"):
        ranks_refuse.refuse_parts(model, plan)


def test_models_whose_replays_run_collectives_have_nothing_inside_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every level would run them again, on this rank as often as its plan has levels."""
    model, plan = chain(3), Plan(segments=(Segment(calls=("1#0",), inner=(Segment(calls=("1.0#0",)),)),))
    ranks_refuse.refuse_parts(model, plan)
    monkeypatch.setattr(ranks_refuse, "runs_collectives", lambda model: True)
    with pytest.raises(NotApplicable, match=r"1#0 .* others lie inside it.* run collectives"):
        ranks_refuse.refuse_parts(model, plan)


def test_a_replaced_plan_leaves_frames_that_were_made_under_the_old_one() -> None:
    plain, planned = chain(), chain()
    govern(planned, None, numbered(LEVELS[1]), ReplayChecks.of(numbered(LEVELS[1]), "always", governed=False))
    torch.manual_seed(3)
    summed(plain).backward()
    torch.manual_seed(3)
    loss = summed(planned)
    install(planned, Plan.of([["0", "1"]]))
    loss.backward()
    for one, two in zip(plain.parameters(), planned.parameters(), strict=True):
        assert one.grad is not None and two.grad is not None and torch.equal(one.grad, two.grad)


def test_gradients_of_an_input_alone() -> None:
    plain, planned = chain(), chain()
    install(planned, numbered(LEVELS[3]))
    found: list[Tensor] = []
    for model in (plain, planned):
        torch.manual_seed(3)
        x = batch(4, WIDTH).requires_grad_()
        found += torch.autograd.grad(model(x).square().sum(), x)
    assert torch.equal(*found)
