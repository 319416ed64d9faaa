"""What a training says by itself, and what `report` says of it."""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import Any

import pytest
import torch

import autockpt

INFO = logging.INFO


def model(blocks: int = 6) -> torch.nn.Module:
    torch.manual_seed(0)

    def block() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))

    return torch.nn.Sequential(*(block() for _ in range(blocks)))


def train(trained: torch.nn.Module, steps: int) -> None:
    batch = torch.randn(256, 64)
    for _ in range(steps):
        trained.zero_grad()
        trained(batch).square().mean().backward()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    words = ("step 1 of 3", "plan ready", "planned again", "fits already", "plan applied", "a planned step is over")
    return [each.message for each in caplog.records if any(word in each.message for word in words)]


def test_a_loop_is_told_of_its_recording_and_its_plan(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO, "autockpt")
    train(autockpt.apply(model(), "3MB"), 5)
    recording, ready = said(caplog)
    assert recording == "step 1 of 3: recording"
    assert ready.startswith("plan ready: ") and " MB → " in ready and "(budget 3MB), about " in ready
    assert "; recomputes " in ready and "block" in ready


def test_a_plan_for_a_batch_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO, "autockpt")
    autockpt.apply(model(), "3MiB", inputs=torch.randn(256, 64))
    (ready,) = said(caplog)
    assert ready.startswith("plan ready: ") and " MiB → " in ready and "(budget 3MiB)" in ready


def test_a_budget_above_the_plain_peak_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO, "autockpt")
    train(autockpt.apply(model(), "1GB"), 4)
    autockpt.apply(model(), "1GB", inputs=torch.randn(256, 64))
    _, *told = said(caplog)
    assert len(told) == 2 and all("fits already" in each and "nothing is recomputed" in each for each in told)


def test_a_plan_that_is_given_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO, "autockpt")
    autockpt.apply(model(), plan=autockpt.Plan.of(["0", "1"]))
    assert said(caplog) == ["plan applied; recomputes 2 blocks whole"]


def test_a_report_tells_what_was_asked_predicted_and_made() -> None:
    trained = autockpt.apply(model(), "3MB")
    early = autockpt.report(trained)
    assert (early.plan, early.plans, early.steps) == (None, (), 0)
    assert "none yet" in early.explain()
    train(trained, 6)
    found = autockpt.report(trained)
    plan = autockpt.plan_of(trained)
    assert plan is not None and found.plan is plan
    assert (found.asked, found.decimal, found.steps, len(found.plans)) == ("budget 3MB", True, 3, 1)
    assert found.step_seconds is not None and found.measured_peak_bytes is None  # a CPU keeps no statistics
    text = str(found)
    assert len([line for line in text.splitlines() if line]) <= 10
    assert text.startswith("Sequential: budget 3MB\n") and "predicted peak" in text and " MB" in text
    assert "1 plan made" in text and "passed" in text
    assert "budget 3MB" in found._repr_html_()


def test_a_report_tells_why_there_is_another_plan() -> None:
    trained = autockpt.apply(model(), "lowest")
    train(trained, 4)
    optimizer = torch.optim.AdamW(trained.parameters())
    train(trained, 1)
    optimizer.step()
    train(trained, 1)
    found = autockpt.report(trained)
    assert len(found.plans) == 2
    assert "AdamW keeps more than the plan counts on" in str(found)


@pytest.mark.parametrize("names", [["0"], []], ids=["a block", "nothing"])
def test_a_report_of_a_plan_that_was_given_counts_its_steps(names: list[str]) -> None:
    trained = autockpt.apply(model(), plan=autockpt.Plan.of(names))
    early = autockpt.report(trained)
    assert (early.asked, early.plans, early.steps, early.step_seconds) == ("", (), 0, None)
    assert "a plan was applied" in str(early)
    assert "no step ran under the plan yet; steps inside compiled code are not counted" in " ".join(str(early).split())
    train(trained, 3)
    with torch.no_grad():
        trained(torch.randn(256, 64))
    copied = copy.deepcopy(trained)
    found = autockpt.report(trained)
    assert found.steps == 3 and found.step_seconds is not None and found.refused == ()
    assert "3 steps ran under a plan" in str(found) and "passed" in str(found)
    train(copied, 1)
    assert (autockpt.report(copied).steps, autockpt.report(trained).steps) == (1, 3)


def test_steps_of_a_given_plan_go_on_counting_after_a_verification() -> None:
    trained = autockpt.apply(model(), plan=autockpt.Plan.of(["0"]))
    train(trained, 2)
    autockpt.verify(trained, torch.randn(256, 64))
    assert autockpt.report(trained).steps == 2
    train(trained, 1)
    assert autockpt.report(trained).steps == 3


def test_a_report_of_a_given_plan_names_what_is_kept_since_a_replay_differed() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = torch.nn.Linear(64, 64), [0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls[0] += 1
            return torch.tanh(self.inner(x)) * self.calls[0]

    whole = torch.nn.Sequential(model(1), Counting(), model(1))
    trained = autockpt.apply(whole, plan=autockpt.Plan.of(["0", "1"]))
    train(trained, 2)
    found = autockpt.report(trained)
    assert [call for call, _ in found.refused] == ["1#0"]
    assert "1 failed" in str(found) and "kept since a replay differed: 1" in " ".join(str(found).split())
    unchecked = autockpt.apply(model(), plan=autockpt.Plan.of(["0"]), check="never")
    assert 'check="never" was asked for' in str(autockpt.report(unchecked))


def test_slower_is_of_the_step_that_was_measured() -> None:
    plan = autockpt.Plan(plain_seconds=2.0, recompute_seconds=0.5, peak_bytes=1, plain_peak_bytes=2)
    measured = autockpt.Report(model="M", asked="budget 1GB", plan=plan, steps=3, step_seconds=4.5)
    assert measured.timed and measured.slower == pytest.approx(0.5 / 4.0)
    assert "12.5%" in str(measured) and "predicted: 500 ms run again, of that step without it" in str(measured)
    assert "predicted overhead" not in str(measured)
    early = dataclasses.replace(measured, step_seconds=None)
    given = dataclasses.replace(measured, asked="")  # its seconds are those of whatever machine it was made for
    for found in (early, given, dataclasses.replace(measured, step_seconds=0.4)):
        assert not found.timed and found.slower == 0.25
        assert "500 ms run again, of a plain forward and backward of 2 s" in " ".join(str(found).split())
    assert dataclasses.replace(measured, plan=None).slower is None


def test_where_no_plan_comes_the_report_says_why() -> None:
    """It said "none yet" for ever where the model's own forward was never called, or hooks were around it."""
    trained = autockpt.apply(torch.nn.Sequential(model(), torch.nn.Identity()), "3MB")
    train(trained[0], 2)
    unseen = autockpt.report(trained)
    assert "no training forward of its own was seen" in unseen.unplanned and "none yet" not in str(unseen)
    assert "Apply to the module whose forward is called" in " ".join(str(unseen).split())
    train(trained, 1)
    assert autockpt.report(trained).unplanned == "" and "none yet" in str(autockpt.report(trained))

    hooked = autockpt.apply(model(), "3MB")
    with torch.autograd.graph.save_on_cpu():
        train(hooked, 3)
    found = autockpt.report(hooked)
    assert found.plan is None and "saved_tensors_hooks" in found.unplanned and "none yet" not in str(found)


def test_a_loop_without_gradients_or_backwards_is_told_what_is_missing() -> None:
    """The report said "none yet", and that two steps are recorded, of loops that never train."""
    batch = torch.randn(256, 64)
    evaluated, frozen, forward_only = (autockpt.apply(model(), "3MB") for _ in range(3))
    with torch.no_grad():
        evaluated(batch)
        evaluated(batch)
    frozen.requires_grad_(False)(batch)
    forward_only(batch)
    forward_only(batch)
    pages = [" ".join(str(autockpt.report(each)).split()) for each in (evaluated, frozen, forward_only)]
    assert "2 forwards ran so far, and no gradient was asked for" in pages[0]
    assert "1 forward ran so far" in pages[1] and "nothing in them requires a gradient" in pages[1]
    assert "the last one could not be: no backward came before the next forward began" in pages[2]
    train(evaluated, 2)
    with torch.no_grad():
        evaluated(batch)
    assert autockpt.report(evaluated).untrained == 0 and autockpt.report(evaluated).delayed == ""


def test_a_wrapper_and_a_compiled_model_are_not_said_to_have_nothing() -> None:
    wrapper = torch.nn.Sequential(autockpt.apply(model(), "3MB"))
    with pytest.raises(
        autockpt.NotApplicable, match=r"has the model with a plan inside: autockpt.report\(model.get_submodule\('0'\)\)"
    ):
        autockpt.report(wrapper)
    replaced = autockpt.apply(model(), "3MB")
    own = replaced.forward
    vars(replaced)["forward"] = lambda batch: own(batch)
    with pytest.raises(autockpt.NotApplicable, match="was replaced since by one without __wrapped__"):
        autockpt.report(replaced)
    compiled: Any = torch.compile(model(), backend="aot_eager")
    autockpt.apply(compiled, "3MB")
    assert autockpt.report(compiled).asked == "budget 3MB"


def test_a_report_needs_something_to_tell_of() -> None:
    with pytest.raises(autockpt.NotApplicable, match="nothing is applied to Sequential"):
        autockpt.report(model())
    trained = autockpt.apply(model(), "3MB")
    assert autockpt.report(copy.deepcopy(trained)).asked == "budget 3MB"
    with pytest.raises(autockpt.NotApplicable):
        autockpt.report(autockpt.remove(trained))
