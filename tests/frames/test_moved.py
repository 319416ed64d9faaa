"""Tensors that wait off the device: bit for bit what stays would have been, and nothing is left behind."""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import BudgetError, Infeasible, InvalidFile, NotApplicable, Offload, Plan, Segment
from autockpt.solvers import least_peak, simulate
from tests.doors import Handle, NoRoom, find_candidates, find_planned, frames_thread, install, patched_behind, uninstall
from tests.frames.comparing import Run, assert_same, steps
from tests.frames.models import WIDTH, Tower, cnn, images, mlp, penalised, summed
from tests.toys.told import Told, around, chunks, with_linear

Kind = Literal["boundary", "saved"]


@pytest.fixture(name="where")
def folder(tmp_path: Path) -> Offload:
    return Offload(where=str(tmp_path), write_rate=1e9, read_rate=1e9)


def plan_of(where: Offload, *segments: tuple[str, Kind | None]) -> Plan:
    return Plan(segments=tuple(Segment(calls=(f"{name}#0",), offload=kind) for name, kind in segments), offload=where)


def stages(count: int, *kinds: Kind | None) -> list[tuple[str, Kind | None]]:
    return [(str(i), kinds[i % len(kinds)]) for i in range(count)]


class Wide(nn.Sequential):
    """Blocks that save more than they return."""

    def __init__(self, depth: int = 4, width: int = 32) -> None:
        torch.manual_seed(0)
        inner = (nn.LayerNorm, nn.Linear, nn.GELU, nn.Linear, nn.Dropout)
        sizes: tuple[tuple[Any, ...], ...] = ((width,), (width, 4 * width), (), (4 * width, width), (0.1,))
        blocks = (nn.Sequential(*(make(*size) for make, size in zip(inner, sizes, strict=True))) for _ in range(depth))
        super().__init__(*blocks)


def wide(model: nn.Module) -> Tensor:
    loss: Tensor = model(torch.linspace(-1, 1, 64 * 32).reshape(64, 32)).square().mean()
    return loss


def autocast(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return wide(model)


@pytest.mark.parametrize("kinds", [("saved",), ("boundary",), ("saved", "boundary", None)], ids=str)
@pytest.mark.parametrize(
    ("build", "run", "count"),
    [(Wide, wide, 4), (Wide, autocast, 4), (mlp, penalised, 11), (cnn, images, 3)],
    ids=["dropout", "autocast", "gradients of gradients", "batch norm, in place"],
)
def test_a_step_that_moves_tensors_is_the_plain_one(
    build: Callable[[], nn.Module], run: Run, count: int, kinds: tuple[Kind | None, ...], where: Offload
) -> None:
    assert_same(build(), plan_of(where, *stages(count, *kinds)), run, replays=None)


@pytest.mark.parametrize("kind", ["saved", "boundary"])
def test_blocks_that_take_masks_and_return_tuples(kind: Kind, where: Offload) -> None:
    assert_same(Tower(), plan_of(where, *((f"blocks.{i}", kind) for i in range(5))), summed, replays=None)


@pytest.mark.parametrize("check", ["always", "sampled"])
def test_replays_from_boundaries_that_waited_are_checked_as_others(
    check: Literal["always", "sampled"], where: Offload, caplog: pytest.LogCaptureFixture
) -> None:
    model = Wide()
    expected = steps(copy.deepcopy(model), wide, count=3)
    install(model, plan_of(where, *stages(4, "boundary", "saved")), check)
    assert expected.differences(steps(model, wide, count=3)) == [] and caplog.messages == []


def test_a_storage_that_has_gone_lends_its_key_to_none_that_waits(where: Offload) -> None:
    """What was moved has died: the next storage may lie where it lay, in the same version."""
    model = Wide(depth=8)
    assert_same(model, plan_of(where, *stages(8, "saved")), wide, replays=None)


def recurrent(kind: type[nn.Module]) -> nn.Module:
    """A recurrent layer or a cell of one, of whose results the first is returned."""

    def first(inner: nn.Module, x: Tensor) -> Any:
        out = inner(x)
        return out[0] if isinstance(out, tuple) else out

    return around(kind(WIDTH, WIDTH), first)


@pytest.mark.parametrize("kind", ["saved", "boundary"])
@pytest.mark.parametrize(
    "block",
    [chunks, *(functools.partial(recurrent, each) for each in (nn.GRU, nn.GRUCell, nn.LSTM, nn.LSTMCell))],
    ids=["chunks", "GRU", "GRU cell", "LSTM", "LSTM cell"],
)
def test_what_shares_a_storage_and_counts_changes_by_itself(
    block: Callable[[], nn.Module], kind: Kind, where: Offload
) -> None:
    """Gradients were wrong, and nothing said so: the storage had gone once, before the second chunk was written."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), block()) for _ in range(3)))
    assert_same(model, plan_of(where, *stages(3, kind)), summed, replays=None)
    model = nn.Sequential(*(block() for _ in range(3)), nn.Linear(WIDTH, WIDTH))
    assert_same(model, plan_of(where, *stages(3, kind)), summed, replays=None)


def jagged(own: Told, x: Tensor) -> Any:
    """Makes a nested tensor, whose lengths are a symbol of its own each time, and takes it apart."""
    return own.linear(torch.nested.nested_tensor_from_jagged(x * 2, torch.tensor([0, 3, 8]))).values()


@pytest.mark.parametrize("kind", [None, "saved", "boundary"])
def test_nested_tensors_that_a_call_makes_stay(kind: Kind | None, where: Offload) -> None:
    """A plan by hand ended in a ReplayError: the lengths of those that a replay makes are a symbol of their own."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(8, 8), with_linear(jagged), nn.Linear(8, 8)), torch.randn(8, 8)
    plain = copy.deepcopy(model)
    install(model, plan_of(where, ("1", kind)))
    for each in (plain, model):
        each(batch).square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    expected = [parameter.grad for parameter in plain.parameters()]
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_no_plan_moves_what_parts_of_one_storage_save(kind: type[nn.Module], where: Offload) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), recurrent(kind)) for _ in range(3)))
    free = msgspec.structs.replace(where, write_rate=1e18, read_rate=1e18, move_seconds=0.0)
    plan = autockpt.solve(autockpt.profile(model, torch.randn(512, WIDTH)), "lowest", offload=free)
    moved = [call for segment in plan.segments if segment.offload == "saved" for call in segment.calls]
    assert not [call for call in moved if call.endswith("1#0") or call.count(".") == 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on Unix alone")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_that_are_forked_have_files_of_their_own(where: Offload) -> None:
    """They wrote over one another's tensors in the one that they had inherited."""
    model = Wide()
    install(model, plan_of(where, *stages(4, "saved")))
    wide(model)
    stash: Any = handle_of(model).table.stash.of(torch.device("cpu"))
    token = stash.put(torch.ones(16))
    child = os.fork()
    if not child:  # pragma: no cover
        try:
            stash.put(torch.zeros(16))
            stash.get(token, torch.empty(16))
        except autockpt.ProfilingError as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    found = torch.empty(16)
    stash.get(token, found)
    assert torch.equal(found, torch.ones(16))


@pytest.mark.parametrize("kinds", [("saved",), ("boundary",), ("boundary", "saved")], ids=str)
def test_the_peak_is_the_predicted_one(kinds: tuple[Kind, ...], where: Offload) -> None:
    model, batch = Wide(), torch.randn(64, 32)
    chosen = plan_of(where, *stages(4, *kinds))
    planned = find_planned(autockpt.profile(model, batch), chosen)
    predicted_bytes = simulate(planned.problem, range(len(planned.replays))).peak_bytes
    found = autockpt.verify(model, batch, plan=chosen)
    assert found.verdict == "exact" and found.measured_peak_bytes == predicted_bytes


def test_min_is_lower_where_tensors_may_wait(where: Offload) -> None:
    model, batch = Wide(depth=6), torch.randn(64, 32)
    profile = autockpt.profile(model, batch)
    lowest, moved = autockpt.solve(profile, "lowest"), autockpt.solve(profile, "lowest", offload=where)
    one_level_bytes = least_peak(find_candidates(profile).problem).peak_bytes
    assert moved.peak_bytes < one_level_bytes and moved.offload == where and lowest.offload is None
    assert moved.peak_bytes <= lowest.peak_bytes and moved.recompute_seconds < lowest.recompute_seconds  # in parts
    found = autockpt.verify(model, batch, plan=moved)
    assert found.verdict == "exact" and found.measured_peak_bytes == found.predicted_peak_bytes == moved.peak_bytes


def test_a_free_move_takes_the_place_of_recomputing(where: Offload) -> None:
    profile = autockpt.profile(Wide(depth=6), torch.randn(64, 32))
    lowest = autockpt.solve(profile, "lowest")
    free = msgspec.structs.replace(where, write_rate=1e18, read_rate=1e18)
    slow = msgspec.structs.replace(where, write_rate=1.0, read_rate=1.0)
    assert autockpt.solve(profile, lowest.peak_bytes, offload=free).recompute_seconds < lowest.recompute_seconds
    never = autockpt.solve(profile, lowest.peak_bytes, offload=slow)
    assert never.offload is None and never.recompute_seconds <= lowest.recompute_seconds * (1 + 1e-9)


def test_pins_bind_moves(where: Offload) -> None:
    profile = autockpt.profile(Wide(depth=6), torch.randn(64, 32))
    again = autockpt.solve(profile, "lowest", offload=where, recompute="2")
    assert any("2#0" in segment.calls and segment.offload != "saved" for segment in again.segments)
    kept = autockpt.solve(profile, "lowest", offload=where, keep="2")
    assert all(segment.offload == "saved" for segment in kept.segments if segment.calls[0].startswith("2"))


def train(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(3)
    batch, optimizer = torch.randn(512, 32), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_training_under_a_budget_that_no_recomputing_meets(tmp_path: Path) -> None:
    expected, plans = train(Wide(depth=6)), []
    for offload in (None, str(tmp_path)):
        model = autockpt.apply(Wide(depth=6), "lowest", offload=offload)
        assert all(map(torch.equal, train(model), expected))
        plans += [plan for plan in [autockpt.plan_of(model)] if plan is not None]
    lowest, moved = plans
    assert moved.offload is not None and moved.offload.measured and moved.peak_bytes < lowest.peak_bytes
    budget_bytes = (lowest.peak_bytes + moved.peak_bytes) // 2
    with pytest.raises(Infeasible):
        train(autockpt.apply(Wide(depth=6), budget_bytes))
    model = autockpt.apply(Wide(depth=6), budget_bytes, offload=str(tmp_path))
    assert all(map(torch.equal, train(model), expected))
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.peak_bytes <= budget_bytes and any(each.offload for each in plan.segments)


@pytest.mark.parametrize("kind", ["saved", "boundary"])
def test_what_was_changed_in_place_meanwhile_is_refused(kind: Kind, where: Offload) -> None:
    model = Wide()
    install(model, plan_of(where, ("1", kind)))
    hidden = model[0](torch.randn(64, 32))
    out = model(hidden)
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("kind", ["saved", "boundary"])
def test_a_graph_that_is_kept_can_be_gone_through_again(kind: Kind, where: Offload) -> None:
    model, batch = Wide(), torch.randn(64, 32)
    install(model, plan_of(where, *stages(4, kind)))
    loss = model(batch).square().mean()
    first, second = (torch.autograd.grad(loss, [*model.parameters()], retain_graph=True) for _ in range(2))
    third = torch.autograd.grad(loss, [*model.parameters()])
    assert all(map(torch.equal, first, second)) and all(map(torch.equal, first, third))


def handle_of(model: nn.Module) -> Handle:
    known = patched_behind(model)
    assert known is not None
    return known[1]


def waiting_bytes(model: nn.Module) -> int:
    gc.collect()
    stash: Any = handle_of(model).table.stash.of(torch.device("cpu"))
    stash.put(torch.zeros(1))  # which takes up what was let go
    return int(stash._spans.used_bytes)


@pytest.mark.parametrize("kind", ["saved", "boundary"])
@pytest.mark.parametrize("ends", ["backward", "no backward", "an error in forward", "an error in backward"])
def test_nothing_waits_after_a_step_whatever_ended_it(kind: Kind, ends: str, where: Offload, tmp_path: Path) -> None:
    model = Wide()
    install(model, plan_of(where, *stages(4, kind)))
    batch = torch.randn(64, 32)
    for _ in range(3):
        try:
            if ends == "an error in forward":
                with model[3].register_forward_hook(fails):
                    model(batch)
            loss = model(batch).square().mean()
            if ends == "an error in backward":
                loss.register_hook(fails)
            if ends != "no backward":
                loss.backward()
        except RuntimeError as error:
            assert str(error) == "on purpose"
        loss = None
    assert waiting_bytes(model) <= 64 and not [*tmp_path.iterdir()]


def fails(*_: object) -> None:
    raise RuntimeError("on purpose")


def test_the_file_does_not_grow_over_steps(where: Offload) -> None:
    model = Wide()
    install(model, plan_of(where, *stages(4, "saved", "boundary")))
    stash: Any = handle_of(model).table.stash.of(torch.device("cpu"))
    sizes = set()
    for _ in range(40):
        wide(model).backward()
        sizes.add(os.fstat(stash._descriptor).st_size)
    assert len(sizes) == 1


def test_a_full_disk_ends_the_forward_with_an_error_that_says_what_to_do(
    where: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Wide()
    install(model, plan_of(where, *stages(4, "saved")))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(NoRoom, match="another folder"):
            wide(model)
    assert frames_thread.scope is None
    uninstall(model)
    assert steps(model, wide).differences(steps(Wide(), wide)) is not None


def test_copies_of_a_model_have_files_of_their_own(where: Offload) -> None:
    model = Wide()
    expected = steps(copy.deepcopy(model), wide)
    install(model, plan_of(where, *stages(4, "saved")))
    for copied in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))):
        assert expected.differences(steps(copied, wide)) == []
        assert handle_of(copied).table.stash is not handle_of(model).table.stash


def test_hooks_of_the_users_decide_where_tensors_wait(where: Offload) -> None:
    model = Wide()
    plain = [*torch.autograd.grad(wide(model), [*model.parameters()])]
    install(model, plan_of(where, *stages(4, "saved", "boundary")))
    torch.manual_seed(0)
    seen: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.numel())
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = torch.autograd.grad(wide(model), [*model.parameters()])
    assert seen and len(found) == len(plain)


@pytest.mark.parametrize(
    ("offload", "error"),
    [
        (3, BudgetError),
        ("", BudgetError),
        ("host@fast/s", BudgetError),
        ("host@0/s", BudgetError),
        ("host@x", BudgetError),
        ("host@25", BudgetError),
        ("/tmp@1e9GB/s", BudgetError),
        ("host", NotApplicable),
        ("HOST", NotApplicable),
        ("/no/such/folder", NotApplicable),
    ],
)
def test_where_tensors_cannot_wait_is_said_at_once(offload: Any, error: type[Exception]) -> None:
    model = Wide()
    with pytest.raises(error):
        autockpt.apply(model, "1MB", offload=offload)
    assert not [name for name, module in model.named_modules() if "forward" in module.__dict__]


def test_a_plan_in_a_file_says_where_tensors_wait(where: Offload, tmp_path: Path) -> None:
    plan = plan_of(where, ("0", "saved"), ("1", "boundary"))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    text = json.loads((tmp_path / "plan.json").read_text())
    del text["offload"]
    for segment in text["segments"]:
        del segment["offload"], segment["moved_bytes"]
    (tmp_path / "old.json").write_text(json.dumps(text))
    assert [segment.offload for segment in Plan.load(tmp_path / "old.json").segments] == [None, None]
    with pytest.raises(InvalidFile, match="one call"):
        Plan(segments=(Segment(calls=("0#0", "1#0"), offload="saved"),))


def test_a_plan_that_moves_needs_a_place_on_this_machine(tmp_path: Path) -> None:
    plan = Plan(segments=(Segment(calls=("0#0",), offload="saved"),))
    with pytest.raises(NotApplicable, match="a/folder"):
        autockpt.apply(Wide(), plan=plan)
    with pytest.raises(NotApplicable, match="No such file"):
        autockpt.apply(Wide(), plan=plan, offload=str(tmp_path / "gone"))
    model = autockpt.apply(Wide(), plan=plan, offload=str(tmp_path))
    wide(model).backward()


def test_explain_tells_what_is_moved_from_what_is_recomputed(where: Offload) -> None:
    profile = autockpt.profile(Wide(depth=6), torch.randn(64, 32))
    free = msgspec.structs.replace(where, write_rate=1e18, read_rate=1e18, move_seconds=0.0)
    plan = autockpt.solve(profile, "lowest", offload=free)
    page = str(plan.explain(profile))
    assert any(segment.offload == "saved" for segment in plan.segments)
    assert "Moved off the device" in page and "moved, waits" in page and "what it saves" in page
