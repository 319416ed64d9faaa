"""The same promises on a CUDA device. Skipped where there is none."""

from __future__ import annotations

import gc

import pytest
import torch

import autockpt
from tests.end_to_end.reference import counting_replays
from tests.zoo import Case, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("deterministic"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation"),
]

PREDICTION_TOLERANCE = 0.02
"""Predicted over measured peak; library workspaces, which only some steps allocate, are inside it."""


def on_gpu(name: str) -> Case:
    gc.collect()
    torch.cuda.empty_cache()  # blocks that are larger than what is asked for would be handed out whole
    case = build(name)
    batch = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in case.kwargs.items()}
    return Case(case.model.cuda(), batch)


def gradients(case: Case) -> list[torch.Tensor]:
    torch.manual_seed(3)
    case.forward()[1].backward()
    # On the host: the peaks that are measured while both are kept are those of a step alone.
    found = [p.grad.cpu() for p in case.model.parameters() if p.grad is not None]
    case.model.zero_grad()
    return found


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "t5", "glue"])
def test_a_plan_keeps_its_budget_on_the_gpu(name: str) -> None:
    case = on_gpu(name)
    for _ in range(2):
        case.step()
    plain, reference = autockpt.measure(case.step), gradients(case)
    if not all(torch.equal(a, b) for a, b in zip(reference, gradients(case), strict=True)):
        pytest.skip("the plain step does not repeat itself on this device")
    profile = autockpt.profile(case.model, case.kwargs)
    other = plain.start_bytes - profile.static.total_bytes  # alive, but not the model's
    assert profile.device == torch.cuda.get_device_name()
    plan = autockpt.solve(profile, int((plain.peak_bytes - other) * 0.7))
    autockpt.apply(case.model, plan=plan)
    with counting_replays() as replays:
        planned = gradients(case)
    measured = autockpt.measure(case.step).peak_bytes - other
    assert replays
    assert all(torch.equal(a, b) for a, b in zip(reference, planned, strict=True))
    assert plan.peak_bytes == pytest.approx(measured, rel=PREDICTION_TOLERANCE)
    assert measured <= plan.budget_bytes  # type: ignore[operator]


@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_recording_holds_no_more_than_a_plain_step_on_the_gpu_too(name: str) -> None:
    case = on_gpu(name)
    for _ in range(2):
        case.step()
    plain = autockpt.measure(case.step)
    found: list[autockpt.Profile] = []
    recording = autockpt.measure(lambda: found.append(autockpt.profile(case.model, case.kwargs)))
    (profile,) = found
    other = plain.start_bytes - profile.static.total_bytes  # alive, but not the model's
    expected = pytest.approx(plain.peak_bytes - other, rel=PREDICTION_TOLERANCE)
    assert autockpt.solve(profile, 2**60).peak_bytes == expected
    assert recording.peak_bytes <= plain.peak_bytes * (1 + PREDICTION_TOLERANCE)
