"""The user's own step, recorded while it trains: bit for bit the plain one, and the plain peak exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.doors import alive, device_of, in_place, tensors
from tests.rows import daily
from tests.toys.told import Told
from tests.twin import held_by, storage_bytes
from tests.zoo import DAILY, ZOO, Case, build

SMALL = daily((name for name in ZOO if name != "gpt2-vocabulary"), DAILY)


class Loop:
    """Steps with a loss that nobody is told of, and an optimizer that is made after the first forward."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.optimizer: torch.optim.Optimizer | None = None

    def step(self) -> torch.Tensor:
        outputs, loss = self.case.forward()
        first = next(each for each in tensors(outputs) if each.requires_grad)
        loss = 0.5 * loss + 1e-4 * first.float().square().mean()
        loss.backward()
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.case.model.parameters(), lr=1e-3)
        self.optimizer.step()
        found = loss.detach().clone()
        del outputs, loss, first
        self.optimizer.zero_grad()
        return found

    def peak_bytes(self) -> int:
        assert self.optimizer is not None
        held = held_by(self.case.model, self.optimizer, self.case.kwargs)
        return storage_bytes(held) + autockpt.measure(lambda: self.step(), device="cpu").step_bytes


def states(case: Case) -> Iterator[torch.Tensor]:
    yield from case.model.parameters()
    yield from case.model.buffers()
    yield torch.get_rng_state()


@pytest.mark.parametrize("name", SMALL)
def test_first_steps_are_the_plain_ones_and_the_peak_is_foretold_to_the_byte(name: str) -> None:
    plain, planned = (Loop(build(name, short=True)) for _ in range(2))
    autockpt.apply(planned.case.model, "100GB", solver="articulation")
    found: list[list[Any]] = []
    for loop in (plain, planned):
        torch.manual_seed(3)
        losses = [loop.step() for _ in range(4)]
        found.append([*losses, *(each.clone() for each in states(loop.case))])
    assert all(map(torch.equal, *found))
    plan = autockpt.plan_of(planned.case.model)
    assert plan is not None
    assert plan.plain_peak_bytes == plain.peak_bytes()


def test_a_step_that_is_spilled_holds_no_more_than_a_deep_plan() -> None:
    """Of what forward saves nothing is there but the largest call's own."""
    case = build("uneven")

    def step() -> None:
        outputs, loss = case.forward()
        loss.backward()
        del outputs, loss
        case.model.zero_grad()

    plain_bytes = autockpt.measure(step, device="cpu").step_bytes
    lowest = autockpt.solve(autockpt.profile(case.model, case.kwargs), "lowest")
    autockpt.apply(case.model, "100GB")
    # A profiler runs, so that the step is spilled and cannot be recorded.
    spilled_bytes = autockpt.measure(step, device="cpu").step_bytes
    assert autockpt.plan_of(case.model) is None
    static = storage_bytes(held_by(case.model, None, case.kwargs))
    assert static + spilled_bytes <= lowest.peak_bytes < static + plain_bytes


def remembers(own: Told, batch: Tensor) -> Any:
    """Attends to its own last batch too, which it keeps in an attribute (as Transformer-XL does)."""
    seen = batch if own.memory is None else torch.cat([own.memory, batch], 1)
    keys, values = own.both(seen).chunk(2, -1)
    own.memory = batch.detach()[:, -8:]
    return batch + torch.nn.functional.scaled_dot_product_attention(own.query(batch), keys, values)


def test_what_attributes_hold_until_a_step_replaces_it_is_counted_once() -> None:
    torch.manual_seed(0)
    blocks = [Told(remembers, query=nn.Linear(64, 64), both=nn.Linear(64, 128), memory=None) for _ in range(4)]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.randn(16, 16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    autockpt.apply(model, "100GB")
    for _ in range(5):
        step()
    plan = autockpt.plan_of(model)
    assert plan is not None
    held = held_by(model, optimizer)
    held += [each.memory for each in blocks if each.memory is not None]
    start_bytes = storage_bytes(held)
    held.clear()
    assert plan.plain_peak_bytes == start_bytes + autockpt.measure(step, device="cpu").step_bytes


def test_a_recorded_step_that_somebody_still_holds_puts_no_markers_among_those_of_a_later_one() -> None:
    """It watches what stood as it began; that went in the later step, and markers of both have the same sizes."""
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    model(batch).sum().backward()
    held = in_place.RecordedStep(model, torch.device("cpu"), (batch,))
    held.drop()
    with device_of(torch.device("cpu")).tape() as tape:
        model.zero_grad()
        torch.ones(16)
    assert [event.bytes for event in tape.events() if event.kind == "alloc" and event.bytes % 2] == []


def test_what_a_loop_makes_anew_for_each_step_is_not_said_to_stand_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts in the step: a loop was told of its own targets as of tensors that do not count."""
    monkeypatch.setattr("threading.enumerate", lambda: [threading.current_thread()])  # a test may have left others
    model, batch, targets = nn.Linear(4, 4), torch.randn(2, 4), torch.zeros(1 << 14)
    beside_bytes = storage_bytes((alive.beside(model, [batch], "cpu") or {}).values())
    step = in_place.RecordedStep(model, torch.device("cpu"), (batch,))
    output = step.forward((batch,), lambda: nn.Linear.forward(model, batch))
    output.register_hook(lambda _: step.backward_begins())
    (output.sum() + targets[0]).backward()
    del output
    del targets
    anew = torch.zeros(1 << 14)
    recorded = step.close((batch,))
    assert recorded.stood == recorded.made == (anew.nbytes,)
    assert recorded.uncounted_bytes == beside_bytes - anew.nbytes
