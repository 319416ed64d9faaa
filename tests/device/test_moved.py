"""Tensors of a device that wait in the host's memory."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest import mock

import msgspec
import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import InvalidFile, NotApplicable, Offload, Plan, Segment
from autockpt.solvers import simulate
from tests.device.test_budget import hold
from tests.device.twin import Outcome, Run, blocks, outcome, plain_and_planned, trained_plainly
from tests.doors import Cuda, HostMemory, Lanes, NoRoom, device_of, find_planned, torch_private
from tests.fake_cuda.device import Options, set_options
from tests.rows import crossed
from tests.toys.told import Told, chunks

Kind = Literal["saved", "boundary"]
Way = Literal["out", "back"]

HOST = Offload(where="host", write_rate=25e9, read_rate=25e9)

KINDS: tuple[tuple[Kind, ...], ...] = (("saved",), ("boundary",), ("boundary", "saved"))


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    gc.collect()
    torch_private.empty_pinned_cache()
    yield
    gc.collect()
    torch_private.empty_pinned_cache()


def pinned_bytes() -> int:
    found: int = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return found


def lagging(count: int, lag: int | None, *kinds: Kind) -> Plan:
    """Blocks that move something, and have so many blocks' time for it; None for none."""
    segments = [
        Segment(
            calls=(f"{i}#0",),
            offload=kinds[i % len(kinds)],
            until=f"{min(i + lag, count)}#0" if lag is not None else None,
        )
        for i in range(1, count)
    ]
    return Plan(segments=tuple(segments), offload=HOST)


@dataclass(eq=False)
class _Asked:
    copy: Callable[[], object] | None
    after: _Asked | None

    def run(self) -> None:
        copy, self.copy = self.copy, None
        if copy is not None:
            if self.after is not None:
                self.after.run()
            copy()


@dataclass
class LateLanes:
    """A link that is as slow as can be: nothing is copied before somebody waits for it, and then in order.

    Until then it holds the memory of what it copies: whoever lets go of that without waiting peaks higher.
    """

    asked: dict[str, deque[_Asked]] = field(default_factory=lambda: {"out": deque(), "back": deque()})
    late: int = 0

    def run(self, way: str, copy: Callable[[], object], after: _Asked | None = None) -> _Asked:
        asked = _Asked(copy, after)
        self.asked[way].append(asked)
        self.late = max(self.late, len(self.asked[way]))
        return asked

    def wait(self, mark: _Asked, tensor: Tensor) -> None:
        for queue in self.asked.values():
            while mark in queue:
                queue.popleft().run()


@pytest.fixture(name="late")
def late_lanes() -> Iterator[LateLanes]:
    with slow() as found:
        yield found


@contextlib.contextmanager
def slow() -> Iterator[LateLanes]:
    found = LateLanes()
    with mock.patch.object(Cuda, "lanes", lambda _: found):
        yield found


@functools.cache
def plain() -> Run:
    """Six blocks without a plan: the same whatever others move."""
    return trained_plainly(blocks)


def run_under(plan: Plan) -> Outcome:
    return plain_and_planned(blocks, apply=lambda run, budget: autockpt.apply(run.model, plan=plan), plain=plain())


@pytest.mark.parametrize("rate", ["", "@1000GB/s"], ids=["measured", "fast"])
def test_a_budget_is_kept_with_the_host(rate: str) -> None:
    found = plain_and_planned(
        lambda: blocks(8), apply=lambda run, budget: autockpt.apply(run.model, budget, offload=f"host{rate}")
    )
    hold(found)
    assert found.plan is not None
    moved = [segment for segment in found.plan.segments if segment.offload]
    assert moved if rate else found.plan.offload is None or found.plan.offload.measured


@crossed(kinds=KINDS, lag=[None, 1, 3])
def test_a_plan_that_moves_is_the_plain_step(kinds: tuple[Kind, ...], lag: int | None) -> None:
    found = run_under(lagging(5, lag, *kinds))
    assert outcome(found) == [True] * len(found.plain.left)
    assert max(found.planned.peaks[2:]) < max(found.plain.peaks[2:])


@crossed(kinds=KINDS, lag=[None, 1, 3])
def test_nothing_goes_before_its_copy_is_over_however_slow_that_is(kinds: tuple[Kind, ...], lag: int | None) -> None:
    prompt = run_under(lagging(5, lag, *kinds))
    with slow() as lanes:
        found = run_under(lagging(5, lag, *kinds))
    assert outcome(found) == [True] * len(found.plain.left)
    assert found.planned.peaks == prompt.planned.peaks
    assert lanes.late > 1 or lag is None


@crossed(kinds=KINDS, lag=[None, 1, 2, 4])
def test_the_peak_is_the_predicted_one(kinds: tuple[Kind, ...], lag: int | None) -> None:
    model, batch = blocks(8)
    chosen = lagging(7, lag, *kinds)
    planned = find_planned(autockpt.profile(model, batch), chosen)
    predicted_bytes = simulate(planned.problem, range(len(planned.replays))).peak_bytes
    found = autockpt.verify(model, batch, plan=chosen)
    assert found.verdict == "exact"
    assert found.measured_peak_bytes is not None
    assert abs(predicted_bytes / found.measured_peak_bytes - 1) <= 1e-3


def test_memory_is_held_longer_the_longer_a_copy_may_take() -> None:
    model, batch = blocks(8)
    profile = autockpt.profile(model, batch)

    def peak(lag: int | None) -> int:
        planned = find_planned(profile, lagging(7, lag, "saved"))
        return simulate(planned.problem, range(len(planned.replays))).peak_bytes

    peaks = [peak(None), peak(1), peak(2), peak(4)]
    assert peaks == sorted(set(peaks))


@pytest.mark.parametrize("ends", ["backward", "no backward", "an error in forward", "an error in backward"])
def test_pinned_memory_is_used_again_and_given_back_whatever_ended_the_step(ends: str, late: LateLanes) -> None:
    before = pinned_bytes()
    model, batch = blocks(6)
    autockpt.apply(model, plan=lagging(5, 2, "saved", "boundary"))
    taken = set()
    for _ in range(3):
        try:
            if ends == "an error in forward":
                with model.get_submodule("3").register_forward_hook(fails):
                    model(**batch)
            loss = model(**batch).square().mean()
            if ends == "an error in backward":
                loss.register_hook(fails)
            if ends != "no backward":
                loss.backward()
        except RuntimeError as error:
            assert str(error) == "on purpose"
        loss = None
        gc.collect()
        device_of(torch.device("cuda", 0)).wait()  # autograd's thread may hold the graph of a failed backward
        taken.add(pinned_bytes() - before)
    assert len(taken) == 1 and 0 not in taken
    autockpt.remove(model)
    del model
    gc.collect()
    assert pinned_bytes() == before and not late.asked["back"]


def gradients(model: nn.Module) -> list[bytes]:
    found = [parameter.grad for parameter in model.parameters()]
    return [each.cpu().numpy().tobytes() for each in found if each is not None]


def fails(*_: object) -> None:
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_a_graph_that_is_kept_can_be_gone_through_again(kinds: tuple[Kind, ...], late: LateLanes) -> None:
    model, batch = blocks(6)
    autockpt.apply(model, plan=lagging(5, 2, *kinds))
    torch.manual_seed(1)
    loss = model(**batch).square().mean()
    first, second = (torch.autograd.grad(loss, [*model.parameters()], retain_graph=True) for _ in range(2))
    third = torch.autograd.grad(loss, [*model.parameters()])
    assert all(map(torch.equal, first, second))
    assert all(map(torch.equal, first, third))


def test_two_forwards_before_their_backwards(late: LateLanes) -> None:
    model, batch = blocks(6, dropout=0.0)
    plain = copy.deepcopy(model)
    autockpt.apply(model, plan=lagging(5, 2, "saved", "boundary"))
    for each in (plain, model):
        losses = [each(**batch).square().mean(), (each(**batch) * 2).square().mean()]
        losses[0].backward()
        losses[1].backward()
    assert gradients(plain) == gradients(model)


def changing(own: Told, hidden: Tensor) -> Tensor:
    """Writes into what the block before it has saved."""
    with torch.no_grad():
        hidden.detach().add_(1)
    return hidden * 2


def test_what_is_written_to_while_it_leaves_is_refused(late: LateLanes) -> None:
    """Nobody else holds the tensor any more: the copy may have come before the write, or after."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), Told(changing), nn.Linear(64, 64)).cuda()
    autockpt.apply(model, plan=Plan(segments=(Segment(calls=("1#0",), offload="saved", until="2#0"),), offload=HOST))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(torch.randn(512, 64, device="cuda")).sum().backward()


def test_what_shares_a_storage_and_counts_changes_by_itself_goes_at_once(late: LateLanes) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), chunks()) for _ in range(4))).cuda()
    plain, batch = copy.deepcopy(model), torch.randn(512, 64, device="cuda")
    autockpt.apply(model, plan=lagging(3, 1, "saved"))
    for each in (plain, model):
        each(batch).sum().backward()
    assert gradients(plain) == gradients(model)


def test_a_full_host_ends_the_forward_and_leaves_nothing() -> None:
    before = pinned_bytes()
    model, batch = blocks(6)
    autockpt.apply(model, plan=lagging(5, 2, "saved"))
    with mock.patch.object(HostMemory, "take", side_effect=NoRoom("none")), pytest.raises(NoRoom):
        model(**batch)
    autockpt.remove(model)
    gc.collect()
    assert pinned_bytes() == before


def test_where_little_can_be_pinned_the_rest_waits_in_pageable_memory() -> None:
    set_options(Options(pinned_limit_bytes=1 << 20))
    found = run_under(lagging(5, 2, "saved"))
    assert outcome(found) == [True] * len(found.plain.left)


def test_a_lane_begins_when_the_stream_that_asks_has_come_so_far() -> None:
    """What it copies is made there, by kernels that the host did not wait for."""
    asked: list[tuple[str, object]] = []
    lanes, copied = Lanes(torch.device("cuda", 0)), lambda: asked.append(("copy", torch.cuda.current_stream()))
    before = lanes.run("back", lambda: None)
    current = torch.cuda.current_stream()
    with (
        mock.patch.object(torch.cuda.Stream, "wait_stream", lambda _, other: asked.append(("stream", other))),
        mock.patch.object(torch.cuda.Stream, "wait_event", lambda _, event: asked.append(("event", event))),
    ):
        lanes.run("out", copied, before)
    lane = asked[-1][1]
    assert asked == [("stream", current), ("event", before.event), ("copy", lane)] and lane != current


def test_lanes_are_streams_of_their_own() -> None:
    lanes, seen = Lanes(torch.device("cuda", 0)), list[Any]()
    ways: tuple[Way, ...] = ("out", "back", "out")
    for way in ways:
        lanes.run(way, lambda: seen.append(torch.cuda.current_stream()))
    assert seen[0] == seen[2] != seen[1]
    assert torch.cuda.current_stream() == torch.cuda.default_stream() not in seen


def test_a_recorded_step_knows_how_fast_the_link_is() -> None:
    model, batch = blocks(4)
    before = pinned_bytes()
    profile = autockpt.profile(model, batch)
    gc.collect()
    assert pinned_bytes() == before
    assert profile.offload is not None and profile.offload.measured and profile.offload.is_host
    budget = int(0.9 * profile.plain_peak_bytes)
    found = autockpt.solve(profile, budget, offload=Offload.of("host", saved="2")).offload
    assert found == msgspec.structs.replace(profile.offload, saved=("2",))


def test_training_with_a_call_that_must_move() -> None:
    where = Offload.of("host@1MB/s", boundary="3")
    found = plain_and_planned(
        lambda: blocks(6), apply=lambda run, budget: autockpt.apply(run.model, "1GB", offload=where)
    )
    assert outcome(found) == [True] * len(found.plain.left)
    assert found.plan is not None
    assert [(each.calls, each.offload) for each in found.plan.segments] == [(("3#0",), "boundary")]


def test_a_folder_takes_no_tensors_of_a_device() -> None:
    with pytest.raises(NotApplicable, match="offload='host'"):
        autockpt.apply(nn.Linear(4, 4).to("cuda"), "1MB", offload="/tmp")


def test_a_call_to_wait_for_is_one_of_the_models() -> None:
    model, batch = blocks(4)
    plan = Plan(segments=(Segment(calls=("1#0",), offload="saved", until="none#0"),), offload=HOST)
    with pytest.raises(NotApplicable, match="has no 'none'"):
        autockpt.apply(model, plan=plan)
    with pytest.raises(NotApplicable, match="none#0"):
        find_planned(autockpt.profile(model, batch), plan)
    with pytest.raises(InvalidFile, match="moves nothing"):
        Plan(segments=(Segment(calls=("1#0",), until="2#0"),))
