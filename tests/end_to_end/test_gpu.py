"""The same promises on a CUDA device. Skipped where there is none."""

from __future__ import annotations

import gc

import pytest
import torch

import autockpt
from tests.doors import ALLOCATOR_MARGIN, torch_private
from tests.end_to_end.reference import counting_replays
from tests.fake_cuda.device import Options, installed, set_options
from tests.zoo import Case, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("deterministic"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation"),
]

PREDICTION_TOLERANCE = 0.02
"""Predicted over measured peak, libraries' workspaces apart."""

SHARE = 0.7
"""Of what a plain step needs, libraries' workspaces apart: no plan makes those smaller."""

WORKSPACES = {"small workspaces": (1 << 16, 0), "workspaces of an H100": (32 << 20, 1 << 20)}
"""Of cuBLAS and of cuBLASLt on the fake device; a real one has its own."""


@pytest.fixture(params=WORKSPACES)
def workspaces(request: pytest.FixtureRequest) -> None:
    """Let libraries take workspaces of some size."""
    if installed():
        blas_bytes, bias_bytes = WORKSPACES[request.param]
        set_options(Options(workspace_bytes=blas_bytes, bias_workspace_bytes=bias_bytes))
        torch_private.forget_workspaces()
    elif request.param != next(iter(WORKSPACES)):
        pytest.skip("workspaces are as large as they are")


def on_gpu(name: str) -> Case:
    """Build a model there, with the workspaces that it needs."""
    gc.collect()
    torch.cuda.empty_cache()  # blocks that are larger than what is asked for would be handed out whole
    case = build(name, short=installed())  # the kernels of the fake device are those of the CPU
    batch = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in case.kwargs.items()}
    case = Case(case.model.cuda(), batch)  # no larger: blocks above a MiB are left whole, and no margin is left for it
    take_workspaces(case)
    return case


def take_workspaces(case: Case) -> None:
    """Have libraries take all that a step needs, plain or planned: some is taken by replays, in autograd's thread."""
    for _ in range(2):
        case.step()

    def hook(_: torch.Tensor) -> None:
        with torch.enable_grad():
            case.forward()

    number = torch.zeros((), device="cuda", requires_grad=True).exp()
    number.register_hook(hook)
    number.backward()


def gradients(case: Case) -> list[torch.Tensor]:
    torch.manual_seed(3)
    case.forward()[1].backward()
    # On the host: the peaks that are measured while both are kept are those of a step alone.
    found = [p.grad.cpu() for p in case.model.parameters() if p.grad is not None]
    case.model.zero_grad()
    return found


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "t5", "glue"])
def test_a_plan_keeps_its_budget_on_the_gpu(name: str, workspaces: None) -> None:
    case = on_gpu(name)
    plain, reference = autockpt.measure(case.step), gradients(case)
    if not all(torch.equal(a, b) for a, b in zip(reference, gradients(case), strict=True)):
        pytest.skip("the plain step does not repeat itself on this device")
    profile = autockpt.profile(case.model, case.kwargs)
    other = plain.start_bytes - profile.static.total_bytes  # alive, but not the model's
    assert profile.device == torch.cuda.get_device_name()
    workspace_bytes = profile.static.other_bytes
    own_bytes = plain.peak_bytes - other - workspace_bytes
    budget_bytes = workspace_bytes + int(SHARE * own_bytes)
    # As `apply` does, leave the allocator its margin: here of the model's bytes.
    plan = autockpt.solve(profile, budget_bytes - int(ALLOCATOR_MARGIN * SHARE * own_bytes))
    autockpt.apply(case.model, plan=plan)
    with counting_replays() as replays:
        planned = gradients(case)
    take_workspaces(case)  # recording has given them back
    measured = autockpt.measure(case.step).peak_bytes - other
    assert replays
    assert all(torch.equal(a, b) for a, b in zip(reference, planned, strict=True))
    assert plan.peak_bytes == pytest.approx(measured, abs=PREDICTION_TOLERANCE * (measured - workspace_bytes))
    assert measured <= budget_bytes


@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_recording_holds_no_more_than_a_plain_step_on_the_gpu_too(name: str, workspaces: None) -> None:
    case = on_gpu(name)
    plain = autockpt.measure(case.step)
    found: list[autockpt.Profile] = []
    recording = autockpt.measure(lambda: found.append(autockpt.profile(case.model, case.kwargs)))
    (profile,) = found
    other = plain.start_bytes - profile.static.total_bytes  # alive, but not the model's
    own_bytes = plain.peak_bytes - other - profile.static.other_bytes
    expected = pytest.approx(plain.peak_bytes - other, abs=PREDICTION_TOLERANCE * own_bytes)
    assert autockpt.solve(profile, 2**60).peak_bytes == expected
    assert recording.peak_bytes <= plain.peak_bytes * (1 + PREDICTION_TOLERANCE)
