"""A budget on a device: every step within it by the allocator's own counter, and bit for bit the plain one."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

import autockpt
from autockpt import Infeasible
from tests.device.twin import Batch, Outcome, Run, adamw, blocks, loss_of, outcome, plain_and_planned, sweep, within
from tests.fake_cuda.device import Options, set_options
from tests.rows import crossed
from tests.toys.told import Told, with_linear

LEAST = 0.995
"""Predicted over measured peak of a planned step, at the least."""

MIB = 1 << 20


def hold(found: Outcome, least: float = LEAST) -> None:
    """Every step is the plain one and within the budget; there is a plan, and its peak is foretold."""
    assert outcome(found) == [True] * len(found.plain.left)
    assert [peak for peak in found.planned.peaks if peak > found.budget_bytes] == []
    assert found.plan is not None
    assert found.plan.segments
    predicted_bytes = found.planned.predicted_bytes()
    assert predicted_bytes is not None
    assert least <= predicted_bytes / found.planned.peaks[-1] <= 1.0 + 1e-3


@pytest.mark.parametrize("workspace_bytes", [1 << 16, 8 * MIB], ids=["64 KiB", "8 MiB"])
def test_workspaces_of_both_threads_are_in_the_prediction(workspace_bytes: int) -> None:
    set_options(Options(workspace_bytes=workspace_bytes))
    hold(plain_and_planned(lambda: blocks(8)))


@crossed(attention=["flash", "efficient", "math"], length=[32, 33])
def test_attention_that_saves_what_nobody_wrote_is_recomputed(
    attention: Literal["flash", "efficient", "math"], length: int, caplog: pytest.LogCaptureFixture
) -> None:
    set_options(Options(attention=attention))
    found = plain_and_planned(lambda: transformer(length))
    hold(found)
    assert not [each.message for each in caplog.records if each.levelno >= logging.WARNING]


def attends(own: Told, input: torch.Tensor) -> Any:
    batch, length, width = input.shape
    q, k, v = own.project(own.norm(input)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return input + own.linear(functional.gelu(mixed.transpose(1, 2).reshape(batch, length, width)))


def transformer(length: int) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    blocks = (with_linear(attends, 64, project=nn.Linear(64, 192), norm=nn.LayerNorm(64)) for _ in range(4))
    return nn.Sequential(*blocks).cuda(), {"input": torch.randn(32, length, 64).cuda()}


def test_apply_with_inputs_measures_no_step_of_its_own_recording(caplog: pytest.LogCaptureFixture) -> None:
    """Its recording ran plain steps, whose peak the statistics keep: no planned step stood so high."""
    caplog.set_level(logging.INFO, "autockpt")

    def apply(run: Run, budget_bytes: int) -> None:
        autockpt.apply(run.model, budget=budget_bytes, inputs=run.batch, loss=loss_of, optimizer=run.optimizer)

    hold(plain_and_planned(blocks, apply=apply))
    assert not [each.message for each in caplog.records if "planned in" in each.message]


def test_a_validation_pass_between_steps_is_no_part_of_a_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autockpt")

    def loop(run: Run) -> None:
        for _ in range(7):
            with run.step():
                loss_of(run.model(**run.batch)).backward()
                if run.optimizer is not None:
                    run.optimizer.step()
            run.model.eval()
            with torch.no_grad():
                run.model(run.batch["input"].repeat(16, 1))
            run.model.train()

    hold(plain_and_planned(blocks, loop))
    assert len([each for each in caplog.records if "planned in" in each.message]) == 1


def test_a_first_validation_pass_over_several_batches_is_no_part_of_the_step_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each of its forwards had read the peak again, by then that of those before it."""
    caplog.set_level(logging.INFO, "autockpt")

    def loop(run: Run) -> None:
        for step in range(9):
            with run.step():
                loss_of(run.model(**run.batch)).backward()
                if run.optimizer is not None:
                    run.optimizer.step()
            if step == 5:
                run.model.eval()
                with torch.no_grad():
                    for _ in range(3):
                        run.model(run.batch["input"].repeat(64, 1))
                run.model.train()

    hold(plain_and_planned(blocks, loop))
    assert len([each for each in caplog.records if "planned in" in each.message]) == 1


def test_what_the_loop_keeps_counts_from_the_next_step_on(caplog: pytest.LogCaptureFixture) -> None:
    """The budget is that of the device, whoever holds what stands on it: a step that would go over is planned anew."""
    caplog.set_level(logging.INFO, "autockpt")
    kept: list[torch.Tensor] = []

    def loop(run: Run) -> None:
        for step in range(8):
            with run.step():
                loss_of(run.model(**run.batch)).backward()
                if run.optimizer is not None:
                    run.optimizer.step()
            if step == 3 and autockpt.plan_of(run.model) is not None:
                kept.append(torch.ones(MIB // 2, device="cuda"))

    found = plain_and_planned(blocks, loop, share=0.75)
    assert outcome(found) == [True] * 8
    assert within(found) == [True] * 8
    plans = [each.message for each in caplog.records if "planned in" in each.message]
    assert len(plans) == 2
    assert "more than the budget, with what is new on the device" in plans[1]


def test_what_the_loop_makes_within_a_step_counts_from_the_next_one_on(caplog: pytest.LogCaptureFixture) -> None:
    """It was not there as the step began: the first step with it goes over, and is measured."""
    caplog.set_level(logging.INFO, "autockpt")

    def loop(run: Run) -> None:
        kept: list[torch.Tensor] = []
        for step in range(9):
            with run.step():
                outputs = run.model(**run.batch)
                if step == 4 and autockpt.plan_of(run.model) is not None:
                    kept.append(torch.ones(MIB // 2, device="cuda"))
                loss_of(outputs).backward()
                del outputs
                if run.optimizer is not None:
                    run.optimizer.step()

    found = plain_and_planned(blocks, loop, share=0.75)
    assert outcome(found) == [True] * 9
    assert within(found) == [True, True, True, True, False, True, True, True, True]
    assert len([each.message for each in caplog.records if "planned in" in each.message]) == 2


@pytest.mark.parametrize("resets", [True, False], ids=["resets statistics", "does not"])
def test_what_comes_and_goes_has_room_in_all_plans_once_it_has_come(resets: bool) -> None:
    """A model that stood in every fourth step was gone as the next plan was made: each time it came it went over."""

    def loop(run: Run) -> None:
        for step in range(20):
            planned = autockpt.plan_of(run.model) is not None
            beside = torch.ones(MIB // 2, device="cuda") if planned and step % 4 == 3 else None
            if resets:
                torch.cuda.reset_peak_memory_stats()
            with run.step():
                loss_of(run.model(**run.batch)).backward()
                if run.optimizer is not None:
                    run.optimizer.step()
            del beside

    found = plain_and_planned(blocks, loop, share=0.75)
    assert outcome(found) == [True] * 20
    assert within(found) == [True] * 20


@pytest.mark.parametrize("given", ["in the loop", "with a batch"])
def test_what_stands_beside_the_model_counts_from_the_first_plan_on(given: str) -> None:
    """A teacher, an average of the weights: they were no part of any plan, and all steps stood so much higher."""
    stands: list[torch.Tensor] = []

    def apply(run: Run, budget_bytes: int) -> None:
        stands.append(torch.ones(MIB, device="cuda"))
        inputs = run.batch if given == "with a batch" else None
        budget_bytes += stands[0].nbytes
        autockpt.apply(run.model, budget=budget_bytes, inputs=inputs, loss=loss_of, optimizer=run.optimizer)

    found = plain_and_planned(blocks, apply=apply)
    assert outcome(found) == [True] * len(found.plain.left)
    assert max(found.planned.peaks) <= found.budget_bytes + stands[0].nbytes
    predicted_bytes = found.planned.predicted_bytes()
    assert predicted_bytes is not None
    assert LEAST <= predicted_bytes / found.planned.peaks[-1] <= 1.0 + 1e-3


def test_a_teacher_that_leaves_no_room_is_told_of_with_the_lowest_peak() -> None:
    model, batch = blocks()
    teacher = torch.ones(8 * MIB, device="cuda")
    with pytest.raises(Infeasible, match="what else is alive") as raised:
        autockpt.apply(model, budget=int(25e6), inputs=batch, loss=loss_of)
    assert raised.value.minimum_bytes > teacher.nbytes


def test_a_recording_of_its_own_counts_no_parameter_twice() -> None:
    """Autograd's thread holds the gradients of a backward until it gets the interpreter: they are no workspaces."""
    set_options(Options(workspace_bytes=0))
    for _ in range(6):
        model, batch = blocks(dropout=0.0)
        assert autockpt.profile(model, batch).static.other_bytes == 0


def test_what_stands_is_counted_as_the_allocator_hands_it_out() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).cuda()
    static = autockpt.profile(model, torch.randn(7, 3).cuda()).static
    assert (static.parameter_bytes, static.buffer_bytes, static.input_bytes) == (4 * 512, 3 * 512, 512)


def test_copies_of_buffers_are_counted_as_the_allocator_hands_them_out() -> None:
    """A replay runs on copies of the buffers that forward changes, and a statistic of five numbers takes 512 bytes."""
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.GELU()).cuda()
    found = autockpt.profile(model, torch.randn(7, 3).cuda()).buffer_bytes
    assert found == dict.fromkeys(("1.running_mean", "1.running_var", "1.num_batches_tracked"), 512)


def test_a_given_optimizer_is_counted_before_its_first_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autockpt")
    sweep()
    model, batch = blocks()
    optimizer = adamw(model)
    autockpt.apply(model, budget=int(25e6), inputs=batch, optimizer=optimizer)
    for _ in range(3):
        loss_of(model(**batch)).backward()
        optimizer.step()
        model.zero_grad()
    assert not [each.message for each in caplog.records if "planned in" in each.message]


def test_verify_measures_what_a_plan_predicts_the_workspaces_included() -> None:
    """Those of both threads stand since earlier steps, and a step that finds them there does not take them."""
    set_options(Options(workspace_bytes=8 * MIB))
    model, batch = blocks(4)
    found = autockpt.verify(model, batch, budget="lowest", loss=loss_of)
    assert found.verdict == "exact"
    assert found.predicted_peak_bytes == found.measured_peak_bytes
    assert found.predicted_plain_peak_bytes == found.measured_plain_peak_bytes


def test_the_largest_batch_leaves_the_allocator_its_margin_as_apply_does() -> None:
    """Its plan filled the budget to the last byte, and trained above it where a block was handed out whole."""
    model, _ = blocks(1)
    budget_bytes = 4 * MIB
    found = autockpt.max_batch(model, lambda samples: torch.randn(samples, 128).cuda(), budget_bytes, loss=loss_of)
    assert found.plan.budget_bytes == int(0.97 * budget_bytes)
    assert found.plan.peak_bytes <= 0.97 * budget_bytes


def test_the_first_planned_steps_measured_peak_is_said_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autockpt")
    model, batch = blocks()
    autockpt.apply(model, "lowest")
    for _ in range(7):
        loss_of(model(**batch)).backward()
        model.zero_grad()
    said = [each.message for each in caplog.records if "a planned step is over" in each.message]
    found = autockpt.report(model)
    assert len(said) == 1
    assert found.measured_peak_bytes == torch.cuda.max_memory_allocated()
    assert "so far, by the device's allocator" in str(found)


def test_steps_under_a_plan_that_was_given_are_counted_and_their_peak_measured() -> None:
    """The report said 0 steps, and nothing of the peak."""
    model, batch = blocks()
    autockpt.apply(model, plan=autockpt.solve(autockpt.profile(model, batch, loss=loss_of), "min"))
    assert autockpt.report(model).measured_peak_bytes is None
    for _ in range(3):
        loss_of(model(**batch)).backward()
        model.zero_grad()
    found = autockpt.report(model)
    assert (found.steps, found.measured_peak_bytes) == (3, torch.cuda.max_memory_allocated())
    assert "for the batch that the plan was made for" in " ".join(str(found).split())


def test_the_budget_that_an_error_names_is_enough_with_the_allocators_margin() -> None:
    model, batch = blocks()
    with pytest.raises(autockpt.Infeasible) as caught:
        autockpt.apply(model, "1MB", inputs=batch, loss=loss_of)
    enough = str(caught.value).split("Ask for budget='")[1].split("'")[0]
    autockpt.apply(model, enough, inputs=batch, loss=loss_of)
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.peak_bytes <= 0.97 * autockpt.solvers.parse_bytes(enough)


def over_time(own: Told, input: torch.Tensor) -> torch.Tensor:
    """Saves many small tensors, as state-space models and recurrent ones by hand do."""
    state, states = torch.zeros_like(input[:, 0]), []
    for part in own.linear(input).unbind(1):
        state = torch.tanh(0.5 * state * part + part)
        states.append(state)
    return torch.stack(states, 1)


def test_checksums_of_many_small_tensors_take_no_block_each() -> None:
    """The rehearsal of a state-space model stood 7 % above the budget: 512 bytes for each checksum of a step."""

    def build() -> tuple[nn.Module, Batch]:
        torch.manual_seed(0)
        return nn.Sequential(*(with_linear(over_time, 64) for _ in range(6))).cuda(), {
            "input": torch.randn(2, 100, 64).cuda()
        }

    found = plain_and_planned(build, share=0.5)
    assert outcome(found) == [True] * 6
    assert within(found) == [True] * 6, (found.planned.peaks, found.budget_bytes)
    rehearsed, *later = found.planned.peaks[2:]
    assert rehearsed <= 1.02 * max(later)


def test_a_plan_says_the_budget_that_was_asked_for_and_keeps_to_that_less_the_margin() -> None:
    """On CUDA a plan for "24GB" said "23.28GB" in its file and on every page."""
    model, batch = blocks()
    autockpt.apply(model, "25MB", inputs=batch, loss=loss_of)
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.goal is not None
    assert plan.goal.budget == "25MB" and plan.budget_bytes == int(0.97 * 25e6)
    assert "25MB, less a margin" in str(plan.explain())
