"""What `verify` finds, what it says, and that it leaves everything as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import (
    BudgetError,
    Infeasible,
    NotApplicable,
    Plan,
    ProfilingError,
    Segment,
    Verification,
    plan_of,
    verify,
)
from tests.check.verify.models import (
    BATCH,
    WIDTH,
    chain,
    counting,
    growing,
    noise,
    plain_chain,
    teaching,
    unsteady,
    writing,
)
from tests.doors import torch_private, verification_page
from tests.frames import models as shapes
from tests.toys.chains import Residual
from tests.toys.told import Told, around, casting

torch.set_num_threads(1)

BLOCKS = Plan.of(["0", ["1", "2"]])


@pytest.mark.parametrize(
    ("model", "inputs", "plan"),
    [
        (plain_chain, BATCH, BLOCKS),
        (shapes.mlp, BATCH, Plan.of([["0", "1", "2"], "3", "6"])),
        (shapes.cnn, shapes.batch(2, 3, 6, 6), Plan.of(["0", ["1", "2"]])),
        (shapes.Tower, BATCH, Plan.of(["blocks.0", ["blocks.2", "blocks.3"]])),
        (shapes.Twice, BATCH, Plan.of(["block#0", "other"])),
        (shapes.Containers, BATCH, Plan.of([["stages.1", "stages.2"], "stages.4"])),
    ],
    ids=["chain", "mlp", "cnn", "tower", "twice", "containers"],
)
def test_exact(model: Callable[[], nn.Module], inputs: object, plan: Plan) -> None:
    found = verify(model(), inputs, plan=plan, steps=2)
    assert (found.verdict, found.exact, found.differences, found.not_replayed) == ("exact", True, (), ())
    assert (found.segments, found.replays, found.plain_runs) == (len(plan.segments), 2 * len(plan.segments), 2)
    assert found.repeatable
    assert found.first is None


def test_everything_is_counted() -> None:
    model = plain_chain()
    found = verify(model, BATCH.clone().requires_grad_(), plan=BLOCKS, steps=3)
    assert found.exact
    assert found.compared == {
        "output": 3,
        "loss": 3,
        "gradient": 3 * 14,
        "input gradient": 3,
        "buffer": 3 * 9,
        "parameter": 3 * 14,
        "generator": 3 * (3 + torch.cuda.is_initialized() * torch.cuda.device_count()),
    }


def test_a_counter_in_python_is_found_and_the_first_difference_is_that_of_the_deepest_block() -> None:
    model = chain(counting, None, counting)
    found = verify(model, BATCH, plan=Plan.of(["0", "1", "2"]))
    assert (found.verdict, found.exact, found.repeatable, found.plain_runs) == ("different", False, True, 4)
    assert found.first is found.differences[0]
    first = found.differences[0]
    assert (first.kind, first.step) == ("gradient", 1)
    assert first.name.startswith("2.")
    assert 0 < first.different_elements <= first.elements
    assert first.largest_difference
    assert first.relative_difference
    assert not any(difference.name.startswith(("3.", "1.norm.running")) for difference in found.differences)
    assert str(found).startswith(f"Different: gradient of {first.name} is not that of the plain step of Sequential: ")
    assert [block.calls for block in list(model)[:3]] == [[0], [0], [0]]


def test_gradients_come_in_the_order_of_backward_and_not_of_registration() -> None:
    reverse = Told(lambda own, x: own.last(own.first(x)), last=chain(counting), first=chain(counting))
    found = verify(reverse, BATCH, plan=Plan.of(["first.0", "last.0"]))
    assert found.verdict == "different"
    prefixes = [difference.name.partition(".")[0] for difference in found.differences]
    assert prefixes == sorted(prefixes, key=["last", "first"].index)


def test_a_plain_step_that_does_not_repeat_itself_is_not_blamed_on_the_plan() -> None:
    found = verify(chain(None, noise), BATCH, plan=Plan.of(["0"]))
    assert (found.verdict, found.exact, found.repeatable, found.first) == ("not repeatable", False, False, None)
    assert found.plain_differences[0].kind == "output"
    assert str(found).startswith("Not repeatable: output differs between two plain runs of Sequential: ")
    assert "Plain against plain" in str(found)
    assert found.over_noise is not None
    assert "times as far from the plain one as plain runs are" in " ".join(str(found).split())


def test_noise_beside_a_plan_that_is_wrong_does_not_hide_it() -> None:
    sides = Told(lambda own, x: (own.noisy(x), own.wrong(x)), noisy=chain(noise), wrong=chain(counting))
    found = verify(
        sides, BATCH, plan=Plan.of(["wrong.0"]), loss=lambda outputs: outputs[0].sum() + outputs[1].square().sum()
    )
    assert found.verdict == "different"
    assert found.first is not None
    assert (found.first.kind, found.first.name.partition(".")[0]) == ("gradient", "wrong")
    assert [each.name for each in found.plain_differences if each.kind == "output"] == ["0"]
    assert {each.name.partition(".")[0] for each in found.plain_differences if each.kind == "gradient"} <= {"noisy"}


def test_noise_far_below_what_the_plan_changes_is_told_apart_by_its_size() -> None:
    def both(block: Any, hidden: Tensor) -> Tensor:
        return counting(block, hidden + 1e-5 * (noise(block, hidden) - hidden))

    found = verify(chain(both), BATCH, plan=Plan.of(["0"]))
    assert found.verdict == "not repeatable"
    assert found.over_noise is not None
    assert found.over_noise > 100
    assert verify(plain_chain(), BATCH, plan=BLOCKS).over_noise is None


def test_a_replay_that_fails_since_forward_does_not_repeat_itself_is_told_and_not_blamed_on_the_plan() -> None:
    found = verify(chain(unsteady), BATCH, plan=Plan.of(["0"]))
    assert found.verdict == "not repeatable"
    assert found.error is not None
    assert f"The planned step raised {found.error}" in " ".join(str(found).split())


def test_a_list_that_grows_is_blamed_on_the_plan_beside_noise() -> None:
    found = verify(chain(lambda block, hidden: noise(block, growing(block, hidden))), BATCH, plan=Plan.of(["0"]))
    assert (found.verdict, found.repeatable, found.first) == ("different", False, None)
    assert [each.name for each in found.wrong_replays] == ["0#0"]
    assert "The plan is to blame: 0#0 cannot be repeated exactly" in " ".join(str(found).split())


def test_noise_that_shows_only_in_later_plain_runs_is_still_noise() -> None:
    draws = itertools.chain([0.0, 0.0, 1.0], itertools.count(2.0))
    found = verify(chain(lambda _, hidden: hidden + next(draws)), BATCH, plan=Plan.of(["1"]))
    assert (found.verdict, found.plain_runs) == ("not repeatable", 3)


@pytest.mark.parametrize(
    ("twist", "words"),
    [(growing, "ReplayError: the replay of 0#0 saved"), (writing, "modified by an inplace operation")],
    ids=["replay", "in place"],
)
def test_an_error_of_the_planned_step_alone_is_a_result(twist: Callable[[Any, Tensor], Tensor], words: str) -> None:
    model = chain(twist, None)
    found = verify(model, BATCH, plan=Plan.of(["0"]))
    assert (found.verdict, found.plain_runs) == ("different", 4)
    assert found.error is not None
    assert words in found.error
    assert "\n" not in found.error
    assert str(found).startswith("Different: the planned step of Sequential fails, and the plain one does not: ")
    assert plan_of(model) is None


def test_a_parameter_that_only_the_replay_changes_is_found() -> None:
    found = verify(chain(teaching), BATCH, plan=Plan.of(["0"]))
    assert found.verdict == "different"
    assert [each.name for each in found.differences if each.kind == "parameter"] == ["0.norm.bias"]


def test_a_plan_of_which_nothing_ran_again_tests_nothing() -> None:
    model = plain_chain()
    model[2].requires_grad_(False)
    found = verify(model, BATCH, plan=Plan.of(["2#5"]))
    assert (found.verdict, found.exact, found.replays) == ("nothing recomputed", False, 0)
    assert found.not_replayed == ("2#5",)
    assert str(found).startswith("Nothing recomputed: no segment of the plan ran again")
    empty = verify(model, BATCH, plan=Plan.of([]))
    assert empty.verdict == "nothing recomputed"
    assert str(empty).startswith("Nothing recomputed: the plan keeps every call")


def test_segments_that_never_ran_again_are_named() -> None:
    found = verify(plain_chain(), BATCH, plan=Plan.of(["0", ["1#3", "2#3"]]))
    assert (found.verdict, found.not_replayed) == ("exact", ("1#3 … 2#3",))
    assert "Segments that never ran again\n  1#3 … 2#3" in str(found)


def test_gradients_that_are_none_stay_none() -> None:
    model = plain_chain()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    found = verify(model, BATCH, plan=BLOCKS)
    assert found.exact
    assert found.compared["gradient"] == 15


def test_a_gradient_that_is_missing_from_one_run_is_found() -> None:
    model = chain(None)
    weights = itertools.chain([1.0, 1.0, 0.0], itertools.repeat(1.0))  # plain, plain, planned, and what follows
    spare = nn.Parameter(torch.ones(WIDTH))
    model.register_parameter("spare", spare)

    def loss(outputs: Tensor) -> Tensor:
        return outputs.sum() + (spare.sum() if next(weights) else 0)

    found = verify(model, BATCH, plan=Plan.of(["0"]), loss=loss)
    (missing,) = [each for each in found.differences if each.kind == "gradient"]
    assert (missing.name, missing.what) == ("spare", f"None instead of float32[{WIDTH}]")
    assert "gradient of spare: None instead of float32[8]" in str(found)


def test_the_budget_is_planned_for_as_by_apply() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)))
    batch = torch.randn(256, 32)
    found = verify(model, batch, budget="2MB", solver="articulation")
    assert found.exact
    assert found.replays > 0
    assert plan_of(model) is None
    with pytest.raises(Infeasible):
        verify(model, batch, budget=1000)
    generous = verify(model, batch, budget="1GB")
    assert generous.verdict == "nothing recomputed"


def test_the_applied_plan_is_verified_and_is_on_the_model_again() -> None:
    model = plain_chain()
    autockpt.apply(model, plan=BLOCKS)
    assert verify(model, BATCH).segments == 2
    assert plan_of(model) is BLOCKS
    other = Plan.of(["2"])
    assert verify(model, BATCH, plan=other).segments == 1
    assert plan_of(model) is BLOCKS
    assert autockpt.remove(model)(BATCH).shape == BATCH.shape


def test_without_any_plan_the_error_says_what_to_give() -> None:
    with pytest.raises(BudgetError, match="give a plan or a budget"):
        verify(plain_chain(), BATCH)
    with pytest.raises(BudgetError, match="only one of them"):
        verify(plain_chain(), BATCH, plan=BLOCKS, budget="1GB")
    with pytest.raises(NotApplicable, match="steps=0"):
        verify(plain_chain(), BATCH, plan=BLOCKS, steps=0)


def test_a_plan_that_does_not_fit_is_refused_before_anything_runs() -> None:
    model = chain(lambda *_: pytest.fail("it ran"))
    autockpt.apply(model, plan=BLOCKS_OF_ONE)
    with pytest.raises(NotApplicable, match="has no 'other'"):
        verify(model, BATCH, plan=Plan.of(["other"]))
    assert plan_of(model) is BLOCKS_OF_ONE


BLOCKS_OF_ONE = Plan.of(["0"])


def test_a_plan_on_a_part_of_the_model_is_refused() -> None:
    model = nn.Sequential(plain_chain(), nn.Linear(WIDTH, WIDTH))
    autockpt.apply(model[0], plan=BLOCKS)
    with pytest.raises(NotApplicable, match="'0', so that no step of the whole would be plain"):
        verify(model, BATCH, plan=Plan.of(["1"]))
    assert plan_of(model[0]) is BLOCKS


@pytest.mark.parametrize("inside", [False, True], ids=["around verify", "in the model"])
def test_autocast(inside: bool) -> None:
    model, plan = (casting(plain_chain()), Plan.of(["inner.0", "inner.1"])) if inside else (plain_chain(), BLOCKS)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        found = verify(model, BATCH, plan=plan, steps=2)
        assert torch.is_autocast_enabled("cpu") != inside
    assert (found.verdict, found.replays) == ("exact", 4)


def test_backward_runs_outside_autocast_so_that_a_replay_that_forgets_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_private, "any_autocast_enabled", lambda: False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert verify(plain_chain(), BATCH, plan=BLOCKS).verdict == "different"


def test_outputs_are_named_by_their_place() -> None:
    def many(body: nn.Module, hidden: Tensor) -> dict[str, Any]:
        out = body(hidden)
        return {"loss": out.sum(), "logits": out, "cache": (out.detach(), out * 2), "constant": hidden * 2}

    found = verify(around(chain(noise), many), {"hidden": BATCH}, plan=Plan.of(["inner.1"]))
    assert [each.name for each in found.plain_differences if each.kind == "output"] == [
        "logits",
        "cache[0]",
        "cache[1]",
    ]
    assert found.compared["output"] == 4


def test_a_model_without_parameters_to_train_is_refused() -> None:
    with pytest.raises(NotApplicable, match="no parameter that requires a gradient"):
        verify(plain_chain().requires_grad_(False), BATCH, plan=BLOCKS)
    with torch.no_grad(), pytest.raises(ProfilingError, match="no_grad"):
        verify(plain_chain(), BATCH, plan=BLOCKS)


def test_the_text_fits_sixty_columns() -> None:
    found = [
        verify(chain(counting, None, counting), BATCH, plan=Plan.of(["0", "1", "2"]), steps=3),
        verify(chain(noise, None), BATCH, plan=Plan.of(["1"])),
        verify(chain(growing, None), BATCH, plan=Plan.of(["0", "1"])),
    ]
    for each in found:
        text = verification_page(each).text(60)
        assert max(len(line) for line in text.splitlines()) <= 60
        assert text.lower().startswith(each.verdict)
        assert str(each) == verification_page(each).text(100).rstrip("\n")


def test_a_verification_is_immutable() -> None:
    found = verify(plain_chain(), BATCH, plan=BLOCKS)
    assert isinstance(found, Verification)
    with pytest.raises(AttributeError):
        found.verdict = "different"  # type: ignore[misc]


@pytest.mark.gpu
def test_exact_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = verify(plain_chain().cuda(), BATCH.cuda(), plan=BLOCKS, steps=2)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (found.verdict, found.deterministic, found.device) == ("exact", True, torch.cuda.get_device_name())


def test_units_that_forward_never_came_to_are_named() -> None:
    model = nn.Sequential(Residual(16), Residual(16), nn.Linear(16, 1))
    known, unknown = ("0.up#0",), ("0#0/gelu#1", "0.norm#3")
    found = verify(model, torch.randn(8, 16), plan=Plan(segments=(Segment(calls=("0#0",), keep=known + unknown),)))
    assert (found.verdict, found.not_replayed, found.not_met) == ("exact", (), unknown)
    assert "never came to\n  0#0/gelu#1\n  0.norm#3" in str(found)


def test_a_unit_under_another_name_of_its_module_is_met() -> None:
    model = nn.Sequential(Residual(16), Residual(16), nn.Linear(16, 1))
    model[1].up = model[0].up  # its second call is 0.up#1, and 1.up#1 as well
    found = verify(model, torch.randn(8, 16), plan=Plan(segments=(Segment(calls=("1#0",), keep=("1.up#1",)),)))
    assert (found.verdict, found.not_met) == ("exact", ())


def test_measured_peaks_and_seconds_stand_beside_predicted_ones() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)))
    found = verify(model, torch.randn(256, 32), budget="2MB", loss=lambda outputs: outputs.square().mean())
    assert found.measured_plain_peak_bytes == found.predicted_plain_peak_bytes
    assert found.measured_peak_bytes == found.predicted_peak_bytes
    assert found.measured_plain_peak_bytes is not None
    assert found.measured_peak_bytes is not None
    assert found.measured_peak_bytes <= 2_000_000 < found.measured_plain_peak_bytes
    assert found.measured_seconds
    assert found.measured_plain_seconds
    assert found.predicted_seconds is not None
    assert found.predicted_plain_seconds is not None
    assert found.predicted_seconds > found.predicted_plain_seconds > 0
    predicted = f"slower: {found.predicted_seconds / found.predicted_plain_seconds - 1:.1%} predicted, "
    measured = f"{found.measured_seconds / found.measured_plain_seconds - 1:.1%} measured, under an instrument"
    for page in (str(found), found._repr_html_()):
        assert all(f"{how} {what}" in page for how in ("predicted", "measured") for what in ("peak", "step"))
        assert predicted + measured in " ".join(page.split())


def test_of_a_plan_by_hand_nothing_is_predicted_and_both_steps_are_measured() -> None:
    found = verify(plain_chain(), BATCH, plan=BLOCKS)
    assert (found.predicted_peak_bytes, found.predicted_seconds) == (None, None)
    assert found.measured_peak_bytes
    assert "predicted" not in str(found)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert verify(plain_chain(), BATCH, plan=BLOCKS).measured_peak_bytes is None


def test_a_plan_for_a_smaller_batch_is_said_to_stand_above_its_budget() -> None:
    batch, larger_batch = BATCH.repeat(64, 1), BATCH.repeat(256, 1)
    plan = autockpt.solve(autockpt.profile(plain_chain(), batch, loss=torch.sum), "lowest")
    exact, larger = (verify(plain_chain(), each, loss=torch.sum, plan=plan) for each in (batch, larger_batch))
    assert exact.exact
    assert larger.exact
    assert "above the budget" not in exact.explain()
    assert "above the budget: the plan is that of another model, batch" in larger.explain()
