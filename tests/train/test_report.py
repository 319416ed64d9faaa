"""What a training says by itself, and what `report` says of it."""

from __future__ import annotations

import copy
import logging

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
    trained = autockpt.apply(model(), "min")
    train(trained, 4)
    optimizer = torch.optim.AdamW(trained.parameters())
    train(trained, 1)
    optimizer.step()
    train(trained, 1)
    found = autockpt.report(trained)
    assert len(found.plans) == 2
    assert "AdamW keeps more than the plan counts on" in str(found)


def test_a_report_of_a_plan_that_was_given() -> None:
    found = autockpt.report(autockpt.apply(model(), plan=autockpt.Plan.of(["0"])))
    assert (found.asked, found.plans) == ("", ())
    assert "a plan was applied" in str(found)


def test_a_report_needs_something_to_tell_of() -> None:
    with pytest.raises(autockpt.NotApplicable, match="nothing is applied to Sequential"):
        autockpt.report(model())
    trained = autockpt.apply(model(), "3MB")
    assert autockpt.report(copy.deepcopy(trained)).asked == "budget 3MB"
    with pytest.raises(autockpt.NotApplicable):
        autockpt.report(autockpt.remove(trained))
